"""Runs that benchmarks/simulator times, each in a process of its own.

Times are processor times of simulations; reading and creating jobs does not count.
"""

from __future__ import annotations

import cProfile
import gc
import heapq
import pstats
import resource
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from presage.schedulers.core.cluster import Cluster, Node
from presage.schedulers.core.forecasts import Forecaster, Forecasts
from presage.schedulers.core.job import Job
from presage.schedulers.core.job_status import Phase
from presage.schedulers.core.ledger import Ledger
from presage.schedulers.core.queue import Queue
from presage.schedulers.core.reports.reported_progress import Progress
from presage.schedulers.core.state import State
from presage.schedulers.forecasters.oracle import Oracle
from presage.schedulers.policies.policy_registry import POLICIES
from presage.schedulers.simulator.ground_truth.ground_truth import GroundTruth, TraceDurations
from presage.schedulers.simulator.ground_truth.measured_truth import MeasuredTruth
from presage.schedulers.simulator.ground_truth.measurements import Measurements
from presage.schedulers.simulator.simulation import Simulation
from presage.schedulers.traces.formats import read_trace
from presage.schedulers.traces.generator import generate_trace
from presage.schedulers.traces.trace import Trace

NODE = 8  # devices of a node
ONE_VC = "traces/gavel_philly/vc_0e4a51.csv"
PHILLY = "traces/philly/philly.csv.gz"
ODD_GANG = 12  # GPUs of seven jobs of Philly, which no strict list places on nodes of 8
RELEASE = Path("data/pretrained/release")
ENDED_BETWEEN = 16  # jobs that end, and as many that come, from one decision to the next
STEP_S = 60.0  # from one decision to the next


class Run(NamedTuple):
    """Timed simulation.

    ``mean_pending`` follows from Little's law; ``shared`` is the fraction of jobs that were ever
    co-located.
    """

    jobs: int
    cpu_s: float
    average_jct_s: float
    mean_pending: float
    shared: float
    peak_mib: float

    @property
    def jobs_per_s(self) -> float:
        """Of the processor."""
        return self.jobs / self.cpu_s


def isolated(function: Any, *args: Any) -> Any:
    """Return the result of a function of this module in a fresh process, and print its name."""
    given = (arg.name if isinstance(arg, Path) else str(arg) for arg in args)
    print(function.__name__, *given, file=sys.stderr)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *args).result()


# Whole devices ----------------------------------------------------------------------------------


def traced(path: Path) -> Trace:
    """Return a trace without gangs of 12."""
    trace = read_trace(path)
    return replace(trace, jobs=tuple(job for job in trace.jobs if job.gpus != ODD_GANG))


def simulated(path: Path, nodes: int, policy: str) -> Run:
    """Return a trace simulated under a policy that knows run times."""
    trace = traced(path)
    ground_truth = TraceDurations(trace.duration_s)
    return _run(_cluster(nodes), policy, None, ground_truth, trace.jobs)


def grown(path: Path, jobs: int, nodes: int, load: float, policy: str) -> Run:
    """Return so many jobs like those of a trace, arriving ``load`` times as fast."""
    trace = generate_trace(traced(path), jobs, seed=0)
    faster = [replace(job, submit_s=job.submit_s / load) for job in trace.jobs]
    return _run(_cluster(nodes), policy, None, TraceDurations(trace.duration_s), faster)


def bare(path: Path, nodes: int, policy: str) -> Run:
    """Return the floor: the same schedule by an event loop without state, checks and logs."""
    trace = traced(path)
    jobs = [(job.submit_s, job.gpus, trace.duration_s[job.job_id]) for job in trace.jobs]
    begin_s = time.process_time()
    average_jct_s = bare_loop(jobs, nodes, shortest_first=policy == "sjf")
    cpu_s = time.process_time() - begin_s
    return Run(len(jobs), cpu_s, average_jct_s, 0.0, 0.0, _peak_mib())


def bare_loop(
    jobs: Sequence[tuple[float, int, float]], nodes: int, *, shortest_first: bool
) -> float:
    """Return the average JCT in seconds of jobs (submission, GPUs, duration) in strict order."""
    free, idle = [NODE] * nodes, NODE * nodes
    queue: list[tuple[float, int]] = []
    ends: list[tuple[float, int, list[tuple[int, int]]]] = []
    total_s, arrived = 0.0, 0
    while arrived < len(jobs) or ends:
        now_s = min(
            jobs[arrived][0] if arrived < len(jobs) else float("inf"),
            ends[0][0] if ends else float("inf"),
        )
        while ends and ends[0][0] == now_s:
            for node, gpus in heapq.heappop(ends)[2]:
                free[node] += gpus
                idle += gpus
        while arrived < len(jobs) and jobs[arrived][0] == now_s:
            heapq.heappush(queue, (jobs[arrived][2 if shortest_first else 0], arrived))
            arrived += 1
        while queue:
            submit_s, gpus, duration_s = jobs[queue[0][1]]
            if gpus > idle:
                break
            if gpus <= NODE:
                fits = [(left, node) for node, left in enumerate(free) if left >= gpus]
                places = [(min(fits)[1], gpus)] if fits else []
            else:
                wholes = [(node, NODE) for node, left in enumerate(free) if left == NODE]
                places = wholes[: gpus // NODE] if len(wholes) * NODE >= gpus else []
            if not places:
                break
            for node, taken in places:
                free[node] -= taken
                idle -= taken
            heapq.heappush(ends, (now_s + duration_s, heapq.heappop(queue)[1], places))
            total_s += now_s + duration_s - submit_s
    return total_s / len(jobs)


# Shared devices ---------------------------------------------------------------------------------


class World(NamedTuple):
    """Jobs with models that were measured, on nodes of the devices where they were."""

    cluster: Cluster
    trace: Trace
    measurements: Measurements
    ground_truth: MeasuredTruth


def measured_world(path: Path, tables: Path, jobs: int, nodes: int) -> World:
    """Return the first jobs of a trace, with models drawn from tables of one kind of device."""
    import pandas as pd

    from presage.schedulers.simulator.ground_truth.model_measurements import (
        attach_models,
        read_measurements,
    )

    device = pd.read_parquet(tables / "devices.parquet").iloc[0]
    kind, measurements = device["device_kind"], read_measurements(tables)
    trace = traced(path)
    first = replace(trace, jobs=trace.jobs[:jobs])
    drawn = attach_models(first, measurements, [kind], seed=0)
    cluster = _cluster(nodes, kind, int(device["memory_bytes"]))
    return World(cluster, drawn, measurements, MeasuredTruth(drawn.duration_s, measurements, kind))


def sharing(path: Path, tables: Path, jobs: int, nodes: int, policy: str, forecast: str) -> Run:
    """Return a run with measured models, with forecasts of the oracle or the pretrained release."""
    world = measured_world(path, tables, jobs, nodes)
    forecaster: Forecaster | None = None
    if forecast == "release":
        from presage.models.release.release import load_release
        from presage.schedulers.forecasters.predicted import Predicted
        from presage.serving.predictor.predictor import Predictor

        forecaster = Predicted(Predictor(load_release(RELEASE)))
    return _run(world.cluster, policy, forecaster, world.ground_truth, world.trace.jobs)


# One decision -----------------------------------------------------------------------------------


def decisions_ms(
    path: Path, tables: Path, policy: str, pending: int, nodes: int, count: int, own: bool
) -> list[float]:
    """Return the milliseconds of each of ``count`` decisions, once a cluster is full.

    ``own`` gives every job features of its own; else there are as many shapes of jobs as the trace
    and the tables have.
    """
    world = measured_world(path, tables, pending + 3 * NODE * nodes, nodes)
    forecasts = Forecasts(Oracle(world.ground_truth, world.cluster), world.cluster)
    chosen = POLICIES[policy]()
    ledger = Ledger(world.cluster, Queue(lambda job, status: chosen.key(job, status, forecasts)))
    jobs, kind = iter(world.trace.jobs), next(iter(world.cluster.kinds))
    progress, rng, now_s, is_full = Progress(), Random(0), 0.0, False
    took_ms: list[float] = []
    gc.disable()  # as a simulation does
    while len(took_ms) < count:
        now_s += STEP_S
        came = [next(jobs) for _ in range(pending - len(ledger.pending))]
        came = [replace(_own_features(job) if own else job, submit_s=now_s) for job in came]
        forecasts.expect(came)
        for job in came:
            ledger.submit(job, now_s)
            forecasts.runtime_s(job)  # so that no decision waits for those of 10,000 jobs
        for job_id in rng.sample(list(ledger.running), ENDED_BETWEEN if is_full else 0):
            ledger.end(job_id, Phase.FINISHED, now_s)
        state = State(ledger, now_s, progress)
        begin_s = time.process_time()
        actions = chosen.decide(state, forecasts, rng)
        if is_full:
            took_ms.append((time.process_time() - begin_s) * 1000)
        for job, _, after in ledger.apply(actions, now_s):
            per_s = 1 / world.ground_truth.solo_s(job, kind, job.gpus) if after.allocations else 0.0
            progress.report(job.job_id, 0.0, now_s, per_s)
        is_full = is_full or len(ledger.pending) > pending // 2
    return took_ms


def _own_features(job: Job) -> Job:
    if job.features is None:
        return job
    mine = replace(job.features.job, job_id=f"{job.model} {job.job_id}")
    return replace(job, features=replace(job.features, job=mine))


# Where time goes --------------------------------------------------------------------------------


def profiled_whole(path: Path, nodes: int, policy: str) -> dict[str, float]:
    """Return the seconds in each file's own code, of a trace on exclusive devices."""
    trace = traced(path)
    ground_truth, cluster = TraceDurations(trace.duration_s), _cluster(nodes)
    return _profiled(_simulation(cluster, policy, None, ground_truth, trace.jobs))


def profiled_sharing(
    path: Path, tables: Path, jobs: int, nodes: int, policy: str
) -> dict[str, float]:
    """Return the seconds in each file's own code, with measured models."""
    world = measured_world(path, tables, jobs, nodes)
    return _profiled(_simulation(world.cluster, policy, None, world.ground_truth, world.trace.jobs))


def _profiled(simulation: Simulation) -> dict[str, float]:
    profile = cProfile.Profile()
    profile.runcall(simulation.run)
    spent: dict[str, float] = {}
    rows: dict[tuple[str, int, str], tuple[int, int, float, float, Any]]
    rows = pstats.Stats(profile).stats  # type: ignore[attr-defined]
    for (file, _, _), (_, _, own_s, _, _) in rows.items():
        path = Path(file)
        ours = "schedulers" in path.parts
        name = path.stem if ours else "sortedcontainers" if "sorted" in file else "Python"
        spent[name] = spent.get(name, 0.0) + own_s
    return spent


# How a simulation is run ------------------------------------------------------------------------


def _cluster(nodes: int, kind: str = "v100", memory_bytes: int = 16 * 2**30) -> Cluster:
    return Cluster(tuple(Node(f"n{i}", NODE, kind, memory_bytes) for i in range(nodes)))


def _simulation(
    cluster: Cluster,
    policy: str,
    forecaster: Forecaster | None,
    ground_truth: GroundTruth,
    jobs: Sequence[Job],
) -> Simulation:
    forecaster = forecaster or Oracle(ground_truth, cluster)
    return Simulation(cluster, POLICIES[policy](), forecaster, ground_truth, jobs)


def _run(
    cluster: Cluster,
    policy: str,
    forecaster: Forecaster | None,
    ground_truth: GroundTruth,
    jobs: Sequence[Job],
) -> Run:
    simulation = _simulation(cluster, policy, forecaster, ground_truth, jobs)
    begin_s = time.process_time()
    simulation.run()
    cpu_s = time.process_time() - begin_s
    peak_mib, ended = _peak_mib(), simulation.results
    waited_s = sum(one.status.waited_s for one in ended)
    span_s = max(one.end_s for one in ended) - jobs[0].submit_s
    jct_s = sum(one.end_s - one.job.submit_s for one in ended) / len(ended)
    return Run(len(ended), cpu_s, jct_s, waited_s / span_s, _shared(simulation), peak_mib)


def _shared(simulation: Simulation) -> float:
    """Return the fraction of jobs that were ever co-located."""
    on: dict[int, set[str]] = {}
    held: dict[str, tuple[int, ...]] = {}
    shared: set[str] = set()
    for _, what, job_id, more in simulation.log.entries:
        if what == "start":
            held[job_id] = tuple(allocation.device for allocation in more)
            for device in held[job_id]:
                there = on.setdefault(device, set())
                there.add(job_id)
                if len(there) > 1:
                    shared |= there
        elif what in _LEFT:
            for device in held.pop(job_id, ()):
                on[device].remove(job_id)
    return len(shared) / len(simulation.results)


_LEFT = frozenset({"finish", "preempt", "overflow", "lost"})


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
