"""The simulations of benchmarks/gang: worlds, traces, policies, forecasters."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.forecast_worth.runs import RESTART_S, begun_elsewhere, traced
from benchmarks.gang.plans import NODE, tree
from presage.features.device.device import find_device
from presage.features.tables.campaign import read_campaign
from presage.models.release.release import load_release
from presage.schedulers.core.allocation import FULL_DEVICE_MILLI
from presage.schedulers.core.cluster import Cluster, Node
from presage.schedulers.core.forecasts import Forecaster
from presage.schedulers.core.job import Checkpointing, Job
from presage.schedulers.core.job_status import Phase
from presage.schedulers.forecasters.forecast_table import Table
from presage.schedulers.forecasters.no_forecasts import NoForecasts
from presage.schedulers.forecasters.oracle import Oracle
from presage.schedulers.forecasters.predicted import Predicted
from presage.schedulers.policies.policy_registry import policy_of
from presage.schedulers.simulator.ground_truth.ground_truth import TraceDurations
from presage.schedulers.simulator.ground_truth.measured_truth import MeasuredTruth
from presage.schedulers.simulator.ground_truth.measurements import Measurements
from presage.schedulers.simulator.ground_truth.model_measurements import (
    attach_models,
    read_measurements,
)
from presage.schedulers.simulator.results.event_log import Entry
from presage.schedulers.simulator.results.schedule_metrics import compute_metrics
from presage.schedulers.simulator.simulation import JobResult, Simulation
from presage.schedulers.traces.summary import summarize
from presage.schedulers.traces.trace import Trace
from presage.serving.predictor.predictor import Predictor

SHIPPED = Path("data/pretrained/release")
GIB = 2**30
QUARTERS = 4  # users request whole ones of a device
LARGE = 8  # least devices of gangs with figures of their own
SEEDS = range(5)
LOADS = (0.7, 1.1)  # devices asked for over devices there
RACKS = 4
NODES = {"vc_0e4a51": 8, "ITP 2": 16}
FIRST = 800  # jobs of a trace
KINDS = {"gavel": "v100-16gb", "lucid": "rtx-3090", "own": "cpu-2"}
GANG = "gang:overcommit=2"
ANYWHERE, KEEPS_NOTHING = f"{GANG}:near=cluster", f"{GANG}:expiry_s=0"
POLICIES = (
    "fifo", "best-fit", "bin-packing", "packing:overcommit=2", GANG, f"{GANG}:alpha=0",
    f"{GANG}:beta=0", f"{GANG}:reduce=max", ANYWHERE,
    KEEPS_NOTHING,
)  # fmt: skip
SETTINGS = [("gavel", trace, load) for trace in NODES for load in LOADS] + [
    ("lucid", "ITP 2", 1.1), ("own", "vc_0e4a51", 1.1),
]  # fmt: skip
ONE = ("gavel", "ITP 2", 1.1)  # where weights are swept, and optimisers and forecasts compared
RATIOS = ((0, 1), (1, 8), (1, 3), (1, 1), (3, 1), (8, 1), (1, 0))  # alpha, beta
OPTIMISERS = ("tree", "frog-leaping", "as-published", "greedy")
FORECASTS = ("oracle", "table", "shipped", "none")
FORECAST_SETTINGS = [ONE, ("lucid", "ITP 2", 1.1), ("own", "vc_0e4a51", 1.1)]


class World(NamedTuple):
    """Measurements of jobs on a kind of device."""

    kind: str
    memory_bytes: int
    measurements: Measurements


@dataclass(frozen=True, slots=True)
class Run:
    """One simulation."""

    world: str
    trace: str
    load: float
    policy: str
    seed: int
    forecast: str = "oracle"


@lru_cache
def world(name: str, folder: Path) -> World:
    """Return a folder's measurements; missing memory and utilization are predicted."""
    kind, measured = KINDS[name], read_measurements(folder)
    devices = {device.kind: device for device in read_campaign(folder).devices.values()}
    memory_bytes = find_device(kind, devices).memory_bytes
    models = measured.models_on(kind)
    jobs = [Job(model, 0.0, features=measured.features[model], iterations=1) for model in models]
    predictions = Predicted(_shipped(), risk=0.5).predictions([(job, kind) for job in jobs])
    known = [one for one in predictions if one is not None]
    busy = {
        (m, kind): o.compute_milli / FULL_DEVICE_MILLI for m, o in zip(models, known, strict=True)
    }
    memory = {(m, kind): o.memory_bytes for m, o in zip(models, known, strict=True)}
    return World(
        kind,
        memory_bytes,
        replace(
            measured,
            busy=busy | dict(measured.busy),
            memory_bytes=memory | dict(measured.memory_bytes),
        ),
    )


@lru_cache
def _shipped() -> Predictor:
    return Predictor(load_release(SHIPPED))


def swept(near: str, alpha: float, beta: float) -> str:
    """Return the policy with these weights, by a name that is equal for equal ratios."""
    weights = "".join(f":{name}={value}" for name, value in (("alpha", alpha), ("beta", beta))
                      if value != 1)  # fmt: skip
    return (GANG if near == "node" else ANYWHERE) + weights


def by_optimiser(name: str) -> str:
    """Return the policy that places gangs anywhere, with this optimiser."""
    return ANYWHERE if name == "tree" else f"{ANYWHERE}:optimiser={name}"


def runs() -> list[Run]:
    """Return all runs, each once."""
    settings = [(*setting, policy, "oracle") for setting in SETTINGS for policy in POLICIES]
    settings += [(*ONE, swept(near, *ratio), "oracle")
              for near in ("node", "cluster") for ratio in RATIOS]  # fmt: skip
    settings += [(*ONE, by_optimiser(name), "oracle") for name in OPTIMISERS]
    settings += [(*setting, policy, forecast)
              for setting in FORECAST_SETTINGS for policy in (GANG, "packing:overcommit=2")
              for forecast in FORECASTS]  # fmt: skip
    return [
        Run(of, trace, load, policy, seed, forecast)
        for of, trace, load, policy, forecast in dict.fromkeys(settings)
        for seed in SEEDS
    ]


def simulate_on(folders: Mapping[str, Path], run: Run) -> dict[str, Any]:
    """Simulate a run in the world whose tables lie in ``folders[run.world]``."""
    return simulated(run, folders[run.world])


def simulated(run: Run, folder: Path) -> dict[str, Any]:
    """Return the metrics of a simulated schedule."""
    of = world(run.world, folder)
    nodes = NODES[run.trace]
    cluster = Cluster(
        tuple(Node(f"n{i}", NODE, of.kind, of.memory_bytes) for i in range(nodes)),
        tree(nodes, RACKS),
    )
    trace = cut(begun_elsewhere(traced(run.trace)[0], run.seed))
    busy = summarize(trace).devices_busy
    assert busy is not None
    trace = attach_models(trace, of.measurements, [of.kind], seed=run.seed)
    factor = busy / run.load / cluster.devices
    restarts = Checkpointing(restart_s=RESTART_S)
    jobs = [
        replace(job, submit_s=job.submit_s * factor, checkpointing=restarts) for job in trace.jobs
    ]
    if run.policy == "bin-packing":
        jobs = [_requested(job, of) for job in jobs]
    ground_truth = MeasuredTruth(trace.duration_s, of.measurements, of.kind)
    done = Simulation(
        cluster, policy_of(run.policy), _forecaster(run, ground_truth, cluster, of.measurements),
        ground_truth, jobs, seed=run.seed,
    )  # fmt: skip
    begin_s = time.process_time()
    done.run()
    cpu_s = time.process_time() - begin_s
    return asdict(compute_metrics(done)) | _of_gangs(done) | {"cpu_s": cpu_s}


def cut(trace: Trace) -> Trace:
    """Return the first jobs."""
    return replace(trace, jobs=trace.jobs[:FIRST])


def _requested(job: Job, of: World) -> Job:
    """Return the job with a request of what it needs, in quarters of a device."""
    on = job.model, of.kind
    compute = math.ceil(QUARTERS * of.measurements.busy[on])
    memory = math.ceil(QUARTERS * of.measurements.memory_bytes[on] / of.memory_bytes)
    return replace(
        job,
        compute_milli=min(QUARTERS, compute) * FULL_DEVICE_MILLI // QUARTERS,
        memory_bytes=min(QUARTERS, memory) * (of.memory_bytes // QUARTERS),
    )


def _of_gangs(done: Simulation) -> dict[str, Any]:
    """Return times of large gangs, and figures of reservations."""
    ended = [one for one in done.results if one.phase is Phase.FINISHED]
    slowdown = [one.status.attained_s / one.job.gpus / one.solo_s for one in ended]
    large = [one for one in ended if one.job.gpus >= LARGE]
    most = max(one.job.gpus for one in ended)
    largest = [one for one in ended if one.job.gpus == most]
    passed = bypasses(ended, largest)
    return {
        "p99_slowdown": float(np.percentile(slowdown, 99)),
        "large_jct_s": float(np.mean([one.end_s - one.job.submit_s for one in large])),
        "largest": most,
        "largest_wait_s": max(one.status.waited_s for one in largest),
        "largest_mean_wait_s": float(np.mean([one.status.waited_s for one in largest])),
        "bypasses": float(np.mean(passed)),
        "most_bypasses": max(passed),
        "rollbacks": sum(one.status.rollbacks for one in ended),
        "most_rollbacks": max(one.status.rollbacks for one in ended),
        "reserved_share": reserved_s(done.log.entries)
        / (done.ledger.cluster.devices * max(one.end_s for one in ended)),
    }


def bypasses(ended: Sequence[JobResult], gangs: Sequence[JobResult]) -> list[int]:
    """Return, for each gang, the number of later jobs that started earlier."""
    submit_s = np.array([one.job.submit_s for one in ended])
    start_s = np.array([one.first_start_s for one in ended], dtype=float)
    return [
        int(((submit_s > one.job.submit_s) & (start_s < one.first_start_s)).sum()) for one in gangs
    ]


def reserved_s(entries: Sequence[Entry]) -> float:
    """Return the device-seconds that gangs held without running."""
    since: dict[str, tuple[float, int]] = {}
    total_s = 0.0
    for now_s, what, job_id, more in entries:
        if job_id in since and what in ("reserve", "start", "expire"):
            from_s, devices = since.pop(job_id)
            total_s += devices * (now_s - from_s)
        if what == "reserve":
            since[job_id] = now_s, len(more["allocations"])
    return total_s


def _forecaster(
    run: Run, ground_truth: MeasuredTruth, cluster: Cluster, measurements: Measurements
) -> Forecaster:
    if run.forecast == "none":
        return NoForecasts()
    if run.forecast == "table":
        return Table(measurements)
    if run.forecast == "shipped":
        return Predicted(_shipped())
    return Oracle(ground_truth, cluster)


# A stream of small jobs, and one gang that needs all devices --------------------------------------

STREAM_DAYS = (1, 2, 4, 8, 16)
STREAM_NODES, STREAM_LOAD, STREAM_S = 8, 0.8, 3600.0  # mean run time
STREAM_FROM_S = 6 * STREAM_S  # when the gang comes
STREAM_POLICIES = ("fifo", "best-fit", "backfill", "packing", "gang:expiry_s=0", "gang")


@dataclass(frozen=True, slots=True)
class Stream:
    """Jobs of one device that come for some days, and a gang that needs every device."""

    policy: str
    days: int
    seed: int


STREAMS = [
    Stream(policy, days, seed)
    for policy in STREAM_POLICIES
    for days in STREAM_DAYS
    for seed in SEEDS
]


def streamed(one: Stream) -> dict[str, float]:
    """Return how long the gang waits."""
    draw = random.Random(one.seed)
    devices = STREAM_NODES * NODE
    now_s, jobs, duration_s = 0.0, list[Job](), dict[str, float]()
    while now_s < one.days * 86_400:
        job_id = f"{len(jobs)}"
        jobs.append(Job(job_id, now_s))
        duration_s[job_id] = draw.expovariate(1 / STREAM_S)
        now_s += draw.expovariate(STREAM_LOAD * devices / STREAM_S)
    gang = Job("gang", STREAM_FROM_S, gpus=devices)
    duration_s["gang"] = STREAM_S
    jobs = sorted([*jobs, gang], key=lambda job: job.submit_s)
    nodes = tuple(Node(f"n{i}", NODE, "v100", 16 * GIB) for i in range(STREAM_NODES))
    cluster, ground_truth = Cluster(nodes, tree(STREAM_NODES, RACKS)), TraceDurations(duration_s)
    done = Simulation(
        cluster, policy_of(one.policy), Oracle(ground_truth, cluster), ground_truth, jobs
    )
    done.run()
    (its,) = (ended for ended in done.results if ended.job.job_id == "gang")
    return {
        "wait_s": its.status.waited_s, "bypasses": bypasses(done.results, [its])[0],
        "rollbacks": its.status.rollbacks, "longest_s": max(duration_s.values()),
    }  # fmt: skip
