"""Capacity of a live cluster's controller, under load from nodes that only send reports.

Each node is a stream of its own with eight devices, on which jobs run and do not end. Controller
and nodes have a core each.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import grpc

from presage.schedulers.live.client.client import ClusterClient
from presage.schedulers.simulator.ground_truth.model_measurements import read_measurements
from presage.schedulers.v1 import cluster_pb2 as pb
from presage.schedulers.v1 import cluster_pb2_grpc as pb_grpc

TABLES = Path("data/profiles/cpu-2-zoo")
DEVICES = 8
MEMORY_BYTES = 8 * 2**30
PHASE_S, SETTLE_S = 15.0, 10.0  # SETTLE_S: longer than a node sleeps
ANSWER_S = 5.0
SUBMIT = 500  # jobs at once
JOB_S = 3600.0


@dataclass
class FakeNode:
    """Node that reports every assigned job as running."""

    name: str
    kind: str
    began_s: dict[tuple[str, int], float] = field(default_factory=dict)
    tasks: dict[tuple[str, int], pb.Task] = field(default_factory=dict)
    number: int = 0
    version: int = 0
    answered: int = 0
    waits: asyncio.Event = field(default_factory=asyncio.Event)

    def report(self) -> pb.NodeReport:
        """Return a full report."""
        now_s = time.monotonic()
        for name, task in self.tasks.items():
            task.ran_s = now_s - self.began_s[name]
            task.done = min(1.0, task.ran_s / JOB_S)
            task.phase = pb.TASK_RUNNING
        self.number += 1
        return pb.NodeReport(
            node=self.name, agent_id=self.name, number=self.number, commands_version=self.version,
            devices=[pb.Device(kind=self.kind, memory_bytes=MEMORY_BYTES)] * DEVICES,
            tasks=self.tasks.values(),
        )  # fmt: skip

    def apply(self, orders: pb.NodeCommands) -> None:
        """Begin what is new, forget what is over."""
        self.answered += 1
        self.waits.set()
        if orders.unchanged:
            return
        self.version = orders.version
        for one in orders.tasks:
            name = one.job.job_id, one.attempt
            if name not in self.tasks:
                self.began_s[name] = time.monotonic()
                self.tasks[name] = pb.Task(
                    job_id=name[0], attempt=name[1], allocations=one.allocations, usage_milli=500
                )
        for gone in orders.forget:
            self.tasks.pop((gone.job_id, gone.attempt), None)


@dataclass
class Pace:
    """Time that nodes wait from a response to the next report."""

    heartbeat_s: float


async def _attach(channel: grpc.aio.Channel, node: FakeNode, pace: Pace) -> None:
    async def reports() -> AsyncIterator[pb.NodeReport]:
        while True:
            node.waits.clear()
            yield node.report()
            with suppress(TimeoutError):  # while a decision takes long, reports are not answered
                await asyncio.wait_for(node.waits.wait(), ANSWER_S)
            if pace.heartbeat_s:
                await asyncio.sleep(random.uniform(0.5, 1.5) * pace.heartbeat_s)

    stub: Any = pb_grpc.NodeServiceStub(channel)
    async for orders in stub.Attach(reports()):
        node.apply(orders)


def load(nodes: int, output: Path, port: int = 50171) -> dict[str, float]:
    """Return the rates and decision times of a controller of so many nodes."""
    output.mkdir(parents=True, exist_ok=True)
    journal, log = output / f"{nodes}.db", output / f"{nodes}.log"
    for old in output.glob(f"{nodes}.*"):
        old.unlink()
    command = [
        sys.executable, "-m", "presage", "cluster", "controller", "--journal", str(journal),
        "--port", str(port), "--predictor", str(TABLES), "--policy", "sharing",
    ]  # fmt: skip
    with log.open("wb") as file:
        process = subprocess.Popen(["taskset", "-c", "1", *command], stderr=file)
    os.sched_setaffinity(0, {0})
    try:
        return asyncio.run(_measured(nodes, process.pid, log, f"127.0.0.1:{port}"))
    finally:
        process.terminate()
        process.wait(30)


async def _measured(nodes: int, pid: int, log: Path, target: str) -> dict[str, float]:
    world = read_measurements(TABLES)
    (kind,) = world.kinds()
    fleet = [FakeNode(f"n{i}", kind) for i in range(nodes)]
    pace = Pace(5.0)
    client = ClusterClient(target, timeout_s=60.0)
    await asyncio.to_thread(_until_up, client)
    channels = [grpc.aio.insecure_channel(target, options=[("grpc.use_local_subchannel_pool", 1)])
                for _ in range(min(nodes, 50))]  # fmt: skip
    streams = [
        asyncio.create_task(_attach(channels[i % len(channels)], node, pace))
        for i, node in enumerate(fleet)
    ]
    found: dict[str, float] = {"nodes": nodes}
    try:
        await _until(lambda: all(node.answered for node in fleet))
        models = world.models_on(kind)
        began_s, jobs = time.monotonic(), nodes * DEVICES
        for first in range(0, jobs, SUBMIT):
            batch = [_job(i, models) for i in range(first, min(jobs, first + SUBMIT))]
            await asyncio.to_thread(client.submit, batch)
        found["submitted_per_s"] = jobs / (time.monotonic() - began_s)
        await _until(lambda: sum(len(node.tasks) for node in fleet) == jobs)
        found["placed_per_s"] = jobs / (time.monotonic() - began_s)
        await asyncio.sleep(SETTLE_S)  # until all have said that they run
        found["idle"] = await _core_used(pid)
        pace.heartbeat_s = 0.0
        await asyncio.sleep(SETTLE_S)
        before, began_s = sum(node.answered for node in fleet), time.monotonic()
        own_s = time.process_time()
        await asyncio.sleep(PHASE_S)
        took_s = time.monotonic() - began_s
        found["reports_per_s"] = (sum(node.answered for node in fleet) - before) / took_s
        found["nodes_core"] = (time.process_time() - own_s) / took_s
        pace.heartbeat_s = 5.0
        for stream in streams:
            if stream.done():
                await stream
    finally:
        for stream in streams:
            stream.cancel()
        client.close()
    rows = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    decided_s = [row["seconds"] for row in rows if row.get("event") == "decided"]
    found |= {"decision_median_s": median(decided_s), "decision_max_s": max(decided_s)}
    return found


def _job(number: int, models: Sequence[str]) -> pb.Job:
    return pb.Job(
        job_id=f"job-{number}", command=["true"], model=models[number % len(models)],
        iterations=100, latency_sensitive=number % 10 < 3,
    )  # fmt: skip


async def _core_used(pid: int, for_s: float = 10.0) -> float:
    """Return the part of a core that a process keeps busy while nodes only report."""
    ticks = os.sysconf("SC_CLK_TCK")

    def used_s() -> float:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / ticks

    before = used_s()
    await asyncio.sleep(for_s)
    return (used_s() - before) / for_s


def _until_up(client: ClusterClient) -> None:
    for _ in range(300):
        try:
            client.list()
        except Exception:
            time.sleep(0.1)
        else:
            return
    raise TimeoutError("the controller did not come up")


async def _until(there: Any, patience_s: float = 120.0) -> None:
    began_s = time.monotonic()
    while not there():
        if time.monotonic() - began_s > patience_s:
            raise TimeoutError("the nodes did not come to it")
        await asyncio.sleep(0.05)


if __name__ == "__main__":
    print(json.dumps(load(int(sys.argv[1]), Path(sys.argv[2])), indent=1))
