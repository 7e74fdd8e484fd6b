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
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import uvloop

from benchmarks.scale.cluster import LEASE_S, FixedForecaster, cluster_records, whole_report
from presage.schedulers.live.agent.connection.controller_connection import CHANNEL_OPTIONS
from presage.schedulers.live.controller.cluster_metrics import ClusterMetrics
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

RETRY_S = 1.0
OPENING = 100  # streams that are opened at once
BATCH = 1_000  # records at once
PHASE_S = 20.0
OWN_HEARTBEAT_S, OWN_REPORT_S = 5.0, 1.0  # of an agent by default
REPORTS_PER_S = 200.0  # whole reports of all agents, while nothing else is sent
OPENING_HEARTBEAT_S = 30.0  # while other agents attach
SUSPECT_S = 15.0
ANSWER_S = 5.0  # that an agent waits for the first answer
# Of the measured controller: on a busy machine no node is silent, or lost.
MEASURED_SUSPECT_S, MEASURED_GRACE_S = 36_000.0, 3_600.0


@dataclass
class Agent:
    """Simulated agent, which reports running jobs."""

    node: int
    version: int = 0
    number: int = 0
    answers: int = 0
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
        self.answers += 1
        self.has_answer.set()


class Pacer:
    """Pace at which all agents report, in seconds; infinite intervals for no reports."""

    def __init__(self, heartbeat_s: float, report_s: float) -> None:
        self._pace = heartbeat_s, report_s
        self._changed = asyncio.Event()

    def change(self, heartbeat_s: float, report_s: float) -> None:
        """Let all agents report at another pace from now on."""
        self._pace = heartbeat_s, report_s
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait(self) -> bool:
        """Wait until an agent's next report; return whether it is a whole report.

        After a change of the pace, agents begin at random times, so that they are not in step.
        """
        is_due, least, most = False, 0.5, 1.5
        while not is_due:
            changed, interval_s = self._changed, min(self._pace)
            wait_s = None if interval_s == math.inf else interval_s * random.uniform(least, most)
            try:
                await asyncio.wait_for(changed.wait(), wait_s)
                least, most = 0.0, 1.0
            except TimeoutError:
                is_due = True
        return random.random() < interval_s / self._pace[1]


def measure_heartbeats(nodes: int, folder: Path, port: int = 50181) -> dict[str, float]:
    """Return the processor time of a controller for each kind of report, in seconds."""
    folder.mkdir(parents=True, exist_ok=True)
    journal = folder / f"heartbeats-{nodes}.db"
    for old in folder.glob(f"{journal.name}*"):
        old.unlink()
    with Journal.open(str(journal)) as opened:
        rows = [record_to_json(one) for one in cluster_records(nodes, 0.0, MEASURED_GRACE_S)]
        for first in range(0, len(rows), BATCH):
            opened.append(rows[first : first + BATCH])
    command = [sys.executable, "-m", "benchmarks.scale.heartbeats", str(journal), str(port)]
    with (folder / f"heartbeats-{nodes}.log").open("wb") as log:
        # On a busy machine the kernel divides time by sessions: the agents have one of their own.
        process = subprocess.Popen(
            command, stderr=log, stdout=subprocess.PIPE, start_new_session=True
        )
    try:
        assert process.stdout is not None
        process.stdout.readline()  # it listens
        return asyncio.run(_measured(nodes, process.pid, port))
    finally:
        process.terminate()
        process.wait(60)


async def _measured(nodes: int, pid: int, port: int) -> dict[str, float]:
    agents, pacer = [Agent(node) for node in range(nodes)], Pacer(OPENING_HEARTBEAT_S, math.inf)
    target = f"127.0.0.1:{port}"
    metadata = Credentials(token=local_token_finder(target)()).metadata
    # Else all channels share a connection.
    options = (*CHANNEL_OPTIONS, ("grpc.use_local_subchannel_pool", 1))
    opening = asyncio.Semaphore(OPENING)

    async def attach(agent: Agent) -> None:
        async with grpc.aio.insecure_channel(target, options=options) as channel:
            while True:
                try:
                    await _attach(channel, agent, pacer, metadata, opening)
                except grpc.aio.AioRpcError as error:
                    if agent.answers or error.code() is not grpc.StatusCode.UNAVAILABLE:
                        raise
                await asyncio.sleep(RETRY_S)  # as agents do while a busy machine connects slowly

    streams = [asyncio.create_task(attach(one)) for one in agents]
    try:
        await _until(lambda: all(one.answers for one in agents), streams)
        own = make_pace(nodes, lease_s=LEASE_S, suspect_s=SUSPECT_S)
        pace = max(OWN_HEARTBEAT_S, own.heartbeat_s), max(OWN_REPORT_S, own.report_s)
        found: dict[str, float] = {"nodes": nodes, "heartbeat_s": pace[0], "report_s": pace[1]}
        idle = await _phase((math.inf, math.inf), pacer, agents, streams, pid)
        found["idle"] = idle.core
        short = await _phase((pace[0], math.inf), pacer, agents, streams, pid)
        found["heartbeat_cpu_s"] = (short.core - idle.core) / short.messages_per_s
        whole = await _phase(
            (math.inf, max(1.0, nodes / REPORTS_PER_S)), pacer, agents, streams, pid
        )
        found["report_cpu_s"] = (whole.core - idle.core) / whole.messages_per_s
        both = await _phase(pace, pacer, agents, streams, pid)
        found["core"], found["messages_per_s"] = both.core, both.messages_per_s
        found["answers_per_s"] = both.answers_per_s
        return found
    finally:
        for stream in streams:
            stream.cancel()


class Phase(NamedTuple):
    """Processor time of the controller, as a part of one core, and messages while it was spent."""

    core: float
    messages_per_s: float
    answers_per_s: float


async def _phase(
    pace: tuple[float, float],
    pacer: Pacer,
    agents: Sequence[Agent],
    streams: Sequence[asyncio.Task[None]],
    pid: int,
) -> Phase:
    """Let agents report at a pace, and measure once all of them do."""
    pacer.change(*pace)
    interval_s = min(pace)
    await asyncio.sleep(PHASE_S if interval_s == math.inf else 1.5 * interval_s)

    def count() -> tuple[int, int, float, float]:
        sent, answered = sum(one.number for one in agents), sum(one.answers for one in agents)
        return sent, answered, processor_s(pid), time.monotonic()

    before = count()
    await asyncio.sleep(PHASE_S)
    _check(streams)
    sent, answered, spent_s, took_s = (
        after - earlier for earlier, after in zip(before, count(), strict=True)
    )
    return Phase(spent_s / took_s, sent / took_s, answered / took_s)


async def _attach(
    channel: grpc.aio.Channel,
    agent: Agent,
    pacer: Pacer,
    metadata: Sequence[tuple[str, str]],
    opening: asyncio.Semaphore,
) -> None:
    async def reports() -> AsyncIterator[pb.NodeReport]:
        while not agent.answers:  # a controller does not answer the first reports
            yield agent.report(whole=True)
            with suppress(TimeoutError):
                await asyncio.wait_for(agent.has_answer.wait(), ANSWER_S)
        while True:
            yield agent.report(whole=await pacer.wait())

    stub: Any = pb_grpc.NodeServiceStub(channel)
    async with opening:
        stream = stub.Attach(reports(), metadata=metadata)
        agent.receive(await stream.read())
    while (commands := await stream.read()) is not grpc.aio.EOF:
        agent.receive(commands)


def _check(streams: Sequence[asyncio.Task[None]]) -> None:
    """Raise the error of a stream that has ended."""
    for stream in streams:
        if stream.done():
            stream.result()


async def _until(
    is_over: Callable[[], bool], streams: Sequence[asyncio.Task[None]], patience_s: float = 1_800.0
) -> None:
    began_s = time.monotonic()
    while not is_over():
        _check(streams)
        if time.monotonic() - began_s > patience_s:
            raise TimeoutError(f"the agents did not get their answers within {patience_s:g} s")
        await asyncio.sleep(0.2)


def processor_s(pid: int) -> float:
    """Return the processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def _serve(journal: Path, port: int) -> None:
    """Serve a controller on whose nodes delays of the benchmark have no effect."""
    metrics = Metrics()
    with Journal.open(str(journal)) as opened:
        controller = Controller(
            opened, Sharing().controller_policy(), FixedForecaster,
            Leases(LEASE_S, MEASURED_SUSPECT_S), metrics=ClusterMetrics(metrics.registry),
        )  # fmt: skip
        options = Options(host="127.0.0.1", port=port)
        await run_controller(
            controller, options, "sharing", lambda target: print(target, flush=True), metrics,
            journal.with_suffix(".leaders"), max_connections_per_host=MAX_CONNECTIONS,
        )  # fmt: skip


if __name__ == "__main__":
    uvloop.run(_serve(Path(sys.argv[1]), int(sys.argv[2])))
