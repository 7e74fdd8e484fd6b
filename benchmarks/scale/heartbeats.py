"""Processor time of a live controller for the reports of simulated agents, over gRPC.

The controller is a process of its own, with its journal in SQLite. All agents are in this process,
each with a connection and a stream. The journal contains the nodes and a running job on each
device.
"""

from __future__ import annotations

import asyncio
import math
import os
import random
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import uvloop

from benchmarks.scale.cluster import LEASE_S, FixedForecaster, cluster_records, whole_report
from presage.schedulers.live.controller.controller import Controller, Leases
from presage.schedulers.live.controller.journal.journal import Journal
from presage.schedulers.live.controller.journal.records import record_to_json
from presage.schedulers.live.controller.node_commands import make_pace
from presage.schedulers.live.controller.server.controller_server import (
    MAX_CONNECTIONS,
    run_controller,
)
from presage.schedulers.policies.sharing.sharing_policy import Sharing
from presage.schedulers.v1 import cluster_pb2 as pb
from presage.schedulers.v1 import cluster_pb2_grpc as pb_grpc
from presage.serving.authentication.local_token import local_token_finder
from presage.serving.client.credentials import Credentials
from presage.serving.server.prometheus_metrics import Metrics
from presage.serving.server_options import Options

OPENING = 200  # streams that are opened at once
BATCH = 1_000  # records at once
PHASE_S = 10.0
MESSAGES, LIMIT_S = 5_000, 25.0  # of each kind of message: how many, or for how long
OWN_HEARTBEAT_S = 5.0  # of an agent by default
SUSPECT_S = 15.0
ANSWER_S = 5.0  # that an agent waits for an answer
NO_LOSS_S = 36_000.0  # lease of the measured controller: on a busy machine no node is lost


@dataclass
class Agent:
    """Simulated agent, which reports running jobs."""

    node: int
    version: int = 0
    number: int = 0
    answered: int = 0
    began_s: float = field(default_factory=time.monotonic)
    has_answer: asyncio.Event = field(default_factory=asyncio.Event)

    def report(self, *, whole: bool) -> pb.NodeReport:
        """Return a whole report, or a heartbeat."""
        self.number += 1
        if not whole:
            return pb.NodeReport(number=self.number, unchanged=True)
        ran_s = 10.0 + time.monotonic() - self.began_s
        return whole_report(self.node, self.number, self.version, ran_s)

    def receive(self, commands: pb.NodeCommands) -> None:
        """Take over the version of commands."""
        self.version = commands.version
        self.answered += 1
        self.has_answer.set()


class Load:
    """Kind of reports that all agents send, and the mean time between two; "" for none."""

    def __init__(self, kind: str, interval_s: float) -> None:
        self.kind, self._interval_s = kind, interval_s
        self._changed = asyncio.Event()

    def change(self, kind: str, interval_s: float) -> None:
        """Let all agents send other reports from now on."""
        self.kind, self._interval_s = kind, interval_s
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait(self) -> None:
        """Wait until an agent's next report; after a change, for a part of the interval."""
        with suppress(TimeoutError):
            wait_s = random.uniform(0.5, 1.5) * self._interval_s
            await asyncio.wait_for(self._changed.wait(), None if wait_s == math.inf else wait_s)
            await asyncio.sleep(random.random() * self._interval_s)


def measure_heartbeats(nodes: int, folder: Path, port: int = 50181) -> dict[str, float]:
    """Return the processor time of a controller for each kind of report, in seconds."""
    folder.mkdir(parents=True, exist_ok=True)
    journal = folder / f"heartbeats-{nodes}.db"
    for old in folder.glob(f"{journal.name}*"):
        old.unlink()
    with Journal.open(str(journal)) as opened:
        rows = [record_to_json(one) for one in cluster_records(nodes, 0.0)]
        for first in range(0, len(rows), BATCH):
            opened.append(rows[first : first + BATCH])
    command = [sys.executable, "-m", "benchmarks.scale.heartbeats", str(journal), str(port)]
    with (folder / f"heartbeats-{nodes}.log").open("wb") as log:
        process = subprocess.Popen(command, stderr=log, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()  # it listens
        return asyncio.run(_measured(nodes, process.pid, port))
    finally:
        process.terminate()
        process.wait(60)


async def _measured(nodes: int, pid: int, port: int) -> dict[str, float]:
    agents, load = [Agent(node) for node in range(nodes)], Load("report", math.inf)
    target = f"127.0.0.1:{port}"
    metadata = Credentials(token=local_token_finder(target)()).metadata
    options = [("grpc.use_local_subchannel_pool", 1)]  # else all channels share a connection
    opening = asyncio.Semaphore(OPENING)

    async def attach(agent: Agent) -> None:
        async with grpc.aio.insecure_channel(target, options=options) as channel:
            await _attach(channel, agent, load, metadata, opening)

    streams = [asyncio.create_task(attach(one)) for one in agents]
    try:
        await _until(lambda: all(one.answered for one in agents), streams)
        load.change("", PHASE_S)
        await asyncio.sleep(PHASE_S)  # until all are answered
        pace = make_pace(nodes, lease_s=LEASE_S, suspect_s=SUSPECT_S)
        found: dict[str, float] = {"nodes": nodes, **pace._asdict()}
        began_s, before_s = time.monotonic(), processor_s(pid)
        await asyncio.sleep(PHASE_S)
        found["idle"] = (processor_s(pid) - before_s) / (time.monotonic() - began_s)
        interval_s = max(OWN_HEARTBEAT_S, pace.heartbeat_s)
        for kind in ("heartbeat", "report"):
            load.change(kind, interval_s)
            await asyncio.sleep(2 * interval_s)
            before, began_s, before_s = messages(agents), time.monotonic(), processor_s(pid)
            await _until(partial(_has_sent, agents, before + MESSAGES, began_s + LIMIT_S), streams)
            took_s = time.monotonic() - began_s
            spent_s = processor_s(pid) - before_s - found["idle"] * took_s
            found[f"{kind}_cpu_s"] = spent_s / (messages(agents) - before)
            found[f"{kind}s_per_s"] = (messages(agents) - before) / took_s
        return found
    finally:
        for stream in streams:
            stream.cancel()


async def _attach(
    channel: grpc.aio.Channel,
    agent: Agent,
    load: Load,
    metadata: Sequence[tuple[str, str]],
    opening: asyncio.Semaphore,
) -> None:
    async def reports() -> AsyncIterator[pb.NodeReport]:
        while True:
            if load.kind == "report":
                agent.has_answer.clear()
                yield agent.report(whole=True)
                try:
                    await asyncio.wait_for(agent.has_answer.wait(), ANSWER_S)
                except TimeoutError:  # a controller does not answer the first reports
                    continue
            elif load.kind:
                yield agent.report(whole=False)
            await load.wait()

    stub: Any = pb_grpc.NodeServiceStub(channel)
    async with opening:
        stream = stub.Attach(reports(), metadata=metadata)
        agent.receive(await stream.read())
    while (commands := await stream.read()) is not grpc.aio.EOF:
        agent.receive(commands)


def messages(agents: Sequence[Agent]) -> int:
    """Return the number of reports and heartbeats so far."""
    return sum(agent.number for agent in agents)


def _has_sent(agents: Sequence[Agent], count: int, end_s: float) -> bool:
    """Return whether the agents have sent so many messages, or it is too late."""
    return messages(agents) >= count or time.monotonic() > end_s


def processor_s(pid: int) -> float:
    """Return the processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def _until(
    is_over: Callable[[], bool], streams: Sequence[asyncio.Task[None]], patience_s: float = 1_800.0
) -> None:
    began_s = time.monotonic()
    while not is_over():
        for stream in streams:
            if stream.done():
                await stream
        if time.monotonic() - began_s > patience_s:
            raise TimeoutError(f"the agents did not get their answers within {patience_s:g} s")
        await asyncio.sleep(0.2)


async def _serve(journal: Path, port: int) -> None:
    """Serve a controller on whose nodes delays of the benchmark have no effect."""
    with Journal.open(str(journal)) as opened:
        controller = Controller(
            opened, Sharing().controller_policy(), FixedForecaster,
            Leases(lease_s=NO_LOSS_S, suspect_s=NO_LOSS_S),
        )  # fmt: skip
        options = Options(host="127.0.0.1", port=port)
        await run_controller(
            controller, options, "sharing", lambda target: print(target, flush=True), Metrics(),
            journal.with_suffix(".leaders"), max_connections_per_host=MAX_CONNECTIONS,
        )  # fmt: skip


if __name__ == "__main__":
    uvloop.run(_serve(Path(sys.argv[1]), int(sys.argv[2])))
