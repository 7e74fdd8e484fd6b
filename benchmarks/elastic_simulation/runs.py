"""The simulations of benchmarks/elastic_simulation: traces, loads, policies and forecasts."""

from __future__ import annotations

import math
import os
import random
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.elastic_simulation.law_fit import (
    fit_law,
    mean_error_percent,
    middle_batch,
    scaling_table,
)
from presage.features.tables.campaign import Campaign, read_campaign
from presage.models.release.release import load_release
from presage.schedulers.core.cluster import Cluster, Node
from presage.schedulers.core.forecasts import Forecaster, Forecasts, RuntimePrediction
from presage.schedulers.core.job import Checkpointing, Job
from presage.schedulers.core.speedup import Speedup, SpeedupRequest, fewest_nodes
from presage.schedulers.forecasters.oracle import Oracle
from presage.schedulers.forecasters.predicted import Predicted
from presage.schedulers.policies.elastic.job_speed import JobSpeed
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

SHIPPED = Path("data/pretrained/release")
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
    table, predictor = scaling_table(_campaign(pollux)), Predictor(load_release(SHIPPED))
    names = sorted({features.job.name for features in _campaign(pollux).jobs.values()})
    return LeaveOneOut(
        {name: Predicted(predictor, law=fit_law(table, [name])) for name in names}
    )  # fmt: skip


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
        return [self._of(request.job).speedups([request])[0] for request in requests]


def law_errors(pollux: Path) -> dict[str, tuple[float, float]]:
    """Return the mean error of predicted steps of each model, in per cent.

    The first is that of the law fitted without the model, from its step on one device; the second
    that of the law fitted with it.
    """
    table = scaling_table(_campaign(pollux))
    with_all = fit_law(table)
    return {
        str(name): (
            mean_error_percent(fit_law(table, [str(name)]), table, str(name)),
            mean_error_percent(with_all, table, str(name)),
        )
        for name in np.unique(table.model)
    }


# Sizes at which a job of four devices has run, consolidated, by their number.
MEASURED_SIZES = {2: ((4, 1), (8, 2)), 3: ((4, 1), (8, 2), (16, 4))}


def refit_errors(pollux: Path) -> dict[int, float]:
    """Return the mean error of run times at other sizes, in per cent, by number of measured sizes.

    The sizes are consolidated, up to twice the largest one. The law was fitted without the model.
    """
    world, models = _measured(pollux)
    cluster = Cluster(
        tuple(Node(f"n{i}", DEVICES_OF_A_NODE, KIND, MEMORY_BYTES) for i in range(16))
    )
    found: dict[int, list[float]] = {number: [] for number in MEASURED_SIZES}
    for model in models:
        job = Job("job", 0.0, gpus=4, max_gpus=64, features=world.features[model], iterations=1)
        batch = world.features[model].job.batch_size * job.gpus
        for number, sizes in MEASURED_SIZES.items():
            true_s = partial(world.scaling[model, KIND].step_s, batch)
            measured_s = {size: true_s(*size) for size in sizes}
            speed = JobSpeed(job, KIND, Forecasts(_leave_one_out(pollux), cluster), measured_s)
            others = [
                (gpus, fewest_nodes(gpus, DEVICES_OF_A_NODE))
                for gpus in range(1, 2 * speed.largest_measured + 1)
            ]
            errors = [
                abs(speed.run_s(size) / true_s(*size) - 1) for size in others if size not in sizes
            ]
            found[number].append(float(np.mean(errors)) * 100)
    return {number: float(np.mean(errors)) for number, errors in found.items()}
