"""Time under the controller's lock: a copy of the state of 1,000 nodes."""

from __future__ import annotations

import time
from statistics import median

from presage.schedulers.core.cluster import Cluster
from presage.schedulers.core.forecasts import Forecasts
from presage.schedulers.core.job import Job
from presage.schedulers.forecasters.no_forecasts import NoForecasts
from presage.schedulers.live.controller.controller_core import Core
from presage.schedulers.live.controller.journal.records import Ended
from presage.schedulers.live.controller.replayed_state import ReplayedState, Stage
from presage.schedulers.live.controller.what_if.live_snapshot import LiveCopy, copy_state
from presage.schedulers.live.protocol.submitted_job import SubmittedJob
from presage.schedulers.policies.fifo import Fifo
from presage.schedulers.v1 import cluster_pb2 as pb

NODES, DEVICES, WAITING, ENDED, REPEATS = 1_000, 8, 2_000, 5_000, 20
GIB = 2**30


def measure_lock() -> dict[str, float]:
    """Return the milliseconds under the lock, and those to complete the copy afterwards."""
    core = _large_core()
    times_ms = []
    for _ in range(REPEATS):
        begin_s = time.perf_counter()
        copied = copy_state(core, 10.0)
        times_ms.append(1e3 * (time.perf_counter() - begin_s))
    assert isinstance(copied, LiveCopy)
    begin_s = time.perf_counter()
    snapshot = copied.snapshot()
    return {
        "nodes": NODES,
        "running": len(snapshot.active),
        "waiting": len(snapshot.pending),
        "ended": ENDED,
        "median_ms": median(times_ms),
        "most_ms": max(times_ms),
        "complete_ms": 1e3 * (time.perf_counter() - begin_s),
    }


def _large_core() -> Core:
    """Return a core whose devices are all busy, with jobs that wait and jobs that have ended."""
    known: dict[int, Forecasts] = {}

    def forecasts(cluster: Cluster, now_s: float) -> Forecasts:
        return known.setdefault(len(cluster.nodes), Forecasts(NoForecasts(), cluster))

    core = Core(ReplayedState(), Fifo(), forecasts, now_s=0.0, lease_s=120.0, suspect_s=60.0)
    devices = [pb.Device(kind="h100", memory_bytes=80 * GIB)] * DEVICES
    for number in range(NODES):
        _report(core, f"n{number}", devices, [])
    _submit(core, "e", ENDED)
    core.apply([Ended(f"e{i}", 0, Stage.FINISHED, "", 5.0, 1.0, 1.0) for i in range(ENDED)])
    _submit(core, "j", NODES * DEVICES + WAITING)
    core.apply(core.decide(1.0, 1.0))
    for number in range(NODES):
        name = f"n{number}"
        jobs = core.state.at_node[name].values()
        tasks = [_task(job.job_id, job.attempt, job.allocations[0][0]) for job in jobs]
        _report(core, name, devices, tasks)
    core.apply(core.decide(6.0, 6.0))
    return core


def _submit(core: Core, prefix: str, count: int) -> None:
    jobs = [SubmittedJob(Job(f"{prefix}{i}", 0.0), ("train",)) for i in range(count)]
    core.apply(core.submit(jobs, 0.0, 0.0)[0])


def _task(job_id: str, attempt: int, device: int) -> pb.Task:
    held = pb.Allocation(device=device, compute_milli=1000, memory_bytes=80 * GIB)
    return pb.Task(
        job_id=job_id, attempt=attempt, phase=pb.TASK_RUNNING, allocations=[held], ran_s=4.0,
        done=0.1,
    )  # fmt: skip


def _report(core: Core, node: str, devices: list[pb.Device], tasks: list[pb.Task]) -> None:
    report = pb.NodeReport(node=node, agent_id=node, number=1, devices=devices, tasks=tasks)
    core.apply(core.report(report, 5.0, 5.0))
    core.note_report(report, 5.0)
