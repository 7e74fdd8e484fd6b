"""The simulations of benchmarks/elastic_simulation: traces, loads, policies and forecasts."""

from __future__ import annotations

import math
import os
import random
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from benchmarks.elastic_simulation.served_errors import (
    FEW,
    SHIPPED,
    ServedError,
    mean_error,
    placement_errors,
    refit_error,
    served,
    summary,
)
from presage.features.scaling.scaling_forecast import MOST_GROWTH
from presage.features.scaling.scaling_law import ScalingLaw
from presage.features.tables.campaign import Campaign, read_campaign
from presage.models.release.release import load_release
from presage.models.training.scaling_law_fit import fit_scaling_law, mean_error_percent
from presage.models.training.scaling_rows import scaling_table
from presage.schedulers.core.cluster import Cluster, Node
from presage.schedulers.core.forecasts import Forecaster, RuntimePrediction
from presage.schedulers.core.job import Checkpointing, Job
from presage.schedulers.core.speedup import Speedup, SpeedupRequest, fewest_nodes
from presage.schedulers.forecasters.oracle import Oracle
from presage.schedulers.forecasters.predicted import Predicted
from presage.schedulers.policies.policy_registry import policy_of
from presage.schedulers.simulator.ground_truth.measured_truth import MeasuredTruth
from presage.schedulers.simulator.ground_truth.measurements import Measurements
from presage.schedulers.simulator.ground_truth.model_measurements import (
    attach_models,
    read_measurements,
)
from presage.schedulers.simulator.results.schedule_metrics import compute_metrics
from presage.schedulers.simulator.simulation import Simulation
from presage.schedulers.traces.formats import read_trace
from presage.schedulers.traces.selecting import select_user
from presage.schedulers.traces.summary import summarize
from presage.schedulers.traces.trace import Trace
from presage.serving.predictor.predictor import Predictor

DATASETS = Path(os.environ.get("PRESAGE_DATASETS", "../shared/datasets")) / "traces"
KIND, MEMORY_BYTES, DEVICES_OF_A_NODE = "t4", 16 * 2**30, 4
MOST_GPUS = 64  # of the measured steps
LOADS = (0.7, 1.1)  # devices requested over devices of the cluster
SEEDS = (0, 1)
RESTART_S = 62.0  # Gu et al., Tiresias, NSDI 2019, 5.2.4: median cost of a preemption
# Fewest and most devices of a job over its request.
ELASTICITY = {"rigid": (1.0, 1), "shrink": (0.25, 1), "elastic": (0.25, 2)}
# File, user, nodes. The policy was tuned on two others, which are not reported.
TRACES = {
    "vc_0e4a51": ("gavel_philly/vc_0e4a51.csv", "", 16),
    "Philly ee9e8c": ("philly/philly.csv.gz", "ee9e8c", 16),
    "ITP 2": ("microsoft_itp/cluster02.csv.gz", "", 32),
}
TUNING = {
    "ITP 6": ("microsoft_itp/cluster06.csv.gz", "", 16),
    "Philly 103959": ("philly/philly.csv.gz", "103959", 16),
}


@dataclass(frozen=True, slots=True)
class Run:
    """One simulation; ``jobs`` is one of ``ELASTICITY``."""

    trace: str
    load: float
    policy: str
    forecast: str
    seed: int
    jobs: str = "elastic"


# Policy, source of forecasts, range of sizes.
VARIANTS = (
    ("srtf", "predicted", "elastic"), ("elastic", "predicted", "rigid"),
    ("elastic", "predicted", "shrink"),
    ("elastic", "predicted", "elastic"), ("pollux", "predicted", "elastic"),
    ("srtf", "oracle", "elastic"),
    ("elastic", "oracle", "elastic"),
)  # fmt: skip
RUNS = tuple(
    Run(trace, load, policy, forecast, seed, jobs)
    for trace in TRACES
    for load in LOADS
    for policy, forecast, jobs in VARIANTS
    for seed in SEEDS
)


def simulated(run: Run, pollux: Path) -> dict[str, Any]:
    """Return the metrics of a simulated schedule."""
    world, models = _measured(pollux)
    _, _, nodes = {**TRACES, **TUNING}[run.trace]
    cluster = Cluster(
        tuple(Node(f"n{i}", DEVICES_OF_A_NODE, KIND, MEMORY_BYTES) for i in range(nodes))
    )
    trace, busy = traced(run.trace)
    factor = run.load * cluster.devices / busy
    trace = attach_models(_with_models(trace, models, run.seed), world, [KIND], seed=run.seed)
    jobs = [elastic_job(job, factor, ELASTICITY[run.jobs], cluster.devices) for job in trace.jobs]
    ground_truth = MeasuredTruth(trace.duration_s, world, KIND, scaling="measured")
    forecaster: Forecaster = Oracle(ground_truth, cluster)
    if run.forecast == "predicted":
        forecaster = _leave_one_out(pollux)
    done = Simulation(
        cluster, policy_of(run.policy), forecaster, ground_truth, jobs, seed=run.seed
    )  # fmt: skip
    began_s = time.process_time()
    done.run()
    events = [event for _, event, _, _ in done.log.entries]
    return asdict(compute_metrics(done)) | {
        "resizes": events.count("resize"),
        "cpu_s": time.process_time() - began_s,
    }


def elastic_job(job: Job, factor: float, range_: tuple[float, int], devices: int) -> Job:
    """Return a job that arrives ``factor`` times as early, and runs on a range of sizes."""
    least, most = range_
    return replace(
        job,
        submit_s=job.submit_s / factor,
        min_gpus=max(1, math.ceil(least * job.gpus)),
        max_gpus=max(job.gpus, min(most * job.gpus, MOST_GPUS, devices)),
        checkpointing=Checkpointing(restart_s=RESTART_S),
    )


@lru_cache
def traced(name: str) -> tuple[Trace, float]:
    """Return a trace of gangs that were measured and fit, and the devices that it keeps busy."""
    file, user, nodes = {**TRACES, **TUNING}[name]
    trace = read_trace(DATASETS / file)
    trace = select_user(trace, user) if user else trace
    most, first_s = min(MOST_GPUS, nodes * DEVICES_OF_A_NODE), trace.jobs[0].submit_s
    kept = tuple(
        replace(job, model="", submit_s=job.submit_s - first_s)
        for job in trace.jobs
        if job.gpus <= most and trace.duration_s[job.job_id] > 0
    )
    trace = replace(trace, jobs=kept)
    busy = summarize(trace).devices_busy
    assert busy is not None
    return trace, busy


def _with_models(trace: Trace, models: Sequence[str], seed: int) -> Trace:
    """Return the trace with a drawn model for each job, from a drawn time on.

    Earlier jobs follow after its end.
    """
    drawn, span_s = random.Random(seed), trace.jobs[-1].submit_s
    from_s = drawn.uniform(0, span_s)
    jobs = [
        replace(job, submit_s=(job.submit_s - from_s) % span_s, model=drawn.choice(models))
        for job in trace.jobs
    ]
    return replace(trace, jobs=tuple(sorted(jobs, key=lambda job: job.submit_s)))


@lru_cache
def _campaign(pollux: Path) -> Campaign:
    return read_campaign(pollux)


@lru_cache
def _measured(pollux: Path) -> tuple[Measurements, tuple[str, ...]]:
    """Return the measurements, and each model at its middle batch size."""
    batches: dict[str, dict[int, str]] = {}
    for job_id, features in _campaign(pollux).jobs.items():
        batches.setdefault(features.job.name, {})[features.job.batch_size] = job_id
    models = tuple(of[middle_batch(of.keys())] for of in batches.values())
    return read_measurements(pollux), tuple(sorted(models))


@lru_cache
def _leave_one_out(pollux: Path) -> LeaveOneOut:
    predictor = Predictor(load_release(SHIPPED))
    return LeaveOneOut(
        {name: Predicted(predictor, law=law) for name, law in _laws(pollux).items() if name}
    )


@lru_cache
def _laws(pollux: Path) -> dict[str, ScalingLaw]:
    """Return the laws fitted without each model; "" is the one fitted to all."""
    table = scaling_table([_campaign(pollux)])
    names = sorted(set(table.model))
    return {"": fit_scaling_law(table)} | {name: fit_scaling_law(table, [name]) for name in names}


class LeaveOneOut:
    """Forecaster whose scaling law was fitted without the model that it predicts."""

    def __init__(self, without: dict[str, Predicted]) -> None:
        self._without = without

    def _of(self, job: Job) -> Predicted:
        assert job.features is not None
        return self._without[job.features.job.name]

    def predictions(self, requests: Sequence[tuple[Job, str]]) -> list[RuntimePrediction | None]:
        """Return the prediction of the shipped release for each job."""
        return [self._of(job).predictions([(job, kind)])[0] for job, kind in requests]

    def slowdowns(
        self, requests: Sequence[tuple[str, tuple[Job, ...]]]
    ) -> list[Sequence[float] | None]:
        """Return None: no jobs are co-located here."""
        return [None] * len(requests)

    def speedups(self, requests: Sequence[SpeedupRequest]) -> list[Speedup | None]:
        """Return the speed-up of each request by the law without its model."""
        found: dict[SpeedupRequest, Speedup | None] = {}
        for job in {request.job.job_id: request.job for request in requests}.values():
            of_job = [request for request in requests if request.job.job_id == job.job_id]
            found.update(zip(of_job, self._of(job).speedups(of_job), strict=True))
        return [found[request] for request in requests]


def middle_batch(batches: Collection[int]) -> int:
    """Return the middle one of the distinct measured batch sizes."""
    distinct = sorted(set(batches))
    return distinct[len(distinct) // 2]


# Sizes at which a job of four devices has run, consolidated, by their number.
MEASURED_SIZES = {0: (), 1: ((4, 1),), 2: ((4, 1), (8, 2)), 3: ((4, 1), (8, 2), (16, 4))}
ALL_OTHERS = 0  # measured placements of a job


@dataclass(frozen=True, slots=True)
class ScalingErrors:
    """Mean errors of predicted steps on several devices.

    Attributes
    ----------
    law : mapping of str to (float, float)
        Errors in per cent of the law from measured steps on one device, by model: fitted without
        the model, and with it.
    placements : mapping of int to mapping of str to ServedError
        Held-out placements by the number of measured ones, then by model.
    refits : mapping of int to ServedError
        Other sizes of an unseen model, by number of measured sizes.
    """

    law: Mapping[str, tuple[float, float]]
    placements: Mapping[int, Mapping[str, ServedError]]
    refits: Mapping[int, ServedError]


def scaling_errors(pollux: Path) -> ScalingErrors:
    """Return the errors, those of the service by a server process for each model."""
    campaign, laws = _campaign(pollux), _laws(pollux)
    table = scaling_table([campaign])
    placements: dict[int, dict[str, ServedError]] = {ALL_OTHERS: {}, FEW: {}}
    refits: dict[int, list[ServedError]] = {number: [] for number in MEASURED_SIZES}
    world, models = _measured(pollux)
    for model in models:
        job = world.features[model]
        name = job.job.name
        with served(laws[name]) as client:
            for most, found in placements.items():
                found[name] = summary(placement_errors(client, campaign, name, KIND, most=most))
            true_s = partial(world.scaling[model, KIND].step_s, job.job.batch_size * 4)
            for number, sizes in MEASURED_SIZES.items():
                largest = max((gpus for gpus, _ in sizes), default=4)
                every = [
                    (gpus, fewest_nodes(gpus, DEVICES_OF_A_NODE))
                    for gpus in range(1, MOST_GROWTH * largest + 1)
                ]
                seconds = {size: true_s(*size) for size in every}
                refits[number].append(
                    summary(refit_error(client, job, KIND, (4, 1), seconds, sizes))
                )
    return ScalingErrors(
        {
            name: (
                mean_error_percent(laws[name], table, name),
                mean_error_percent(laws[""], table, name),
            )
            for name in sorted(set(table.model))
        },
        placements,
        {number: mean_error(found) for number, found in refits.items()},
    )
