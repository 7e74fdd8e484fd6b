"""The simulations of benchmarks/forecast_worth: worlds, traces, policies, forecasters."""

from __future__ import annotations

import os
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from benchmarks.predictors.cross_fitted import FOLDS, fold_of
from presage.models.release.release import load_release
from presage.schedulers.core.cluster import Cluster, Node
from presage.schedulers.core.forecasts import Forecaster, RuntimePrediction
from presage.schedulers.core.job import Checkpointing, Job
from presage.schedulers.forecasters.forecast_table import Table
from presage.schedulers.forecasters.no_forecasts import NoForecasts
from presage.schedulers.forecasters.noisy import Noisy
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

SHIPPED = Path("data/pretrained/release")
DATASETS = Path(os.environ.get("PRESAGE_DATASETS", "../shared/datasets")) / "traces"
KIND, MEMORY_BYTES, DEVICES_OF_A_NODE = "rtx-3090", 24 * 2**30, 8
LOADS = (0.7, 1.1)  # devices asked for over devices there
SEEDS = range(5)
RESTART_S = 62.0  # Gu et al., Tiresias, NSDI 2019, 5.2.4: what a preemption costs in the median
# File, user, nodes.
TRACES = {
    "vc_0e4a51": ("gavel_philly/vc_0e4a51.csv", "", 8),
    "ITP 2": ("microsoft_itp/cluster02.csv.gz", "", 16),
    "Philly 6c71a0": ("philly/philly.csv.gz", "6c71a0", 7),
}
TWICE, FOUR = "packing:overcommit=2", "packing:most_members=4:overcommit=2"
# Policy, source of forecasts, risk.
RUNS = [
    ("fifo", "none", 0.1), ("las", "none", 0.1), ("best-fit", "none", 0.1),
    ("sjf", "shipped", 0.1), ("sjf", "retrained", 0.1), ("sjf", "oracle", 0.1),
    ("srtf", "shipped", 0.1), ("srtf", "retrained", 0.1), ("srtf", "oracle", 0.1),
    ("packing", "none", 0.1), ("packing", "shipped", 0.1), ("packing", "retrained", 0.1),
    ("packing", "table", 0.1), ("packing", "oracle", 0.1),
    (TWICE, "shipped", 0.1), (TWICE, "retrained", 0.1), (TWICE, "oracle", 0.1),
    (FOUR, "shipped", 0.1), (FOUR, "shipped", 0.5), (FOUR, "retrained", 0.05),
    (FOUR, "retrained", 0.1), (FOUR, "retrained", 0.5), (FOUR, "oracle", 0.1),
]  # fmt: skip
NOISES = [(0.0, 1.0), (0.25, 1.0), (0.5, 1.0), (1.0, 1.0), (2.0, 1.0), (0.0, 0.5), (0.0, 2.0)]
NOISY = ("ITP 2", 1.1)


Slowdowns = dict[tuple[str, tuple[str, ...]], dict[str, float]]


@dataclass(frozen=True, slots=True)
class Run:
    """One simulation."""

    trace: str
    load: float
    policy: str
    forecast: str
    risk: float
    seed: int
    noise: float = 0.0
    bias: float = 1.0


def simulated(run: Run, lucid: Path, releases: Path) -> dict[str, Any]:
    """Return the metrics of a simulated schedule."""
    world = measured_tables(lucid)
    _, _, nodes = TRACES[run.trace]
    cluster = Cluster(
        tuple(Node(f"n{i}", DEVICES_OF_A_NODE, KIND, 24 * 2**30) for i in range(nodes))
    )
    trace, busy = traced(run.trace)
    factor = run.load * cluster.devices / busy
    trace = attach_models(begun_elsewhere(trace, run.seed), world, [KIND], seed=run.seed)
    jobs = [
        replace(
            job, submit_s=job.submit_s / factor, checkpointing=Checkpointing(restart_s=RESTART_S)
        )
        for job in trace.jobs
    ]
    ground_truth = MeasuredTruth(trace.duration_s, world, KIND)
    forecaster = make_forecaster(run, ground_truth, cluster, world, releases)
    policy = policy_of(run.policy)
    done = Simulation(cluster, policy, forecaster, ground_truth, jobs, seed=run.seed)
    done.run()
    return asdict(compute_metrics(done))


@lru_cache
def measured_tables(lucid: Path) -> Measurements:
    """Return the tables of a folder, which is read once."""
    return read_measurements(lucid)


@lru_cache
def traced(name: str) -> tuple[Trace, float]:
    """Return a trace without models, of gangs that fit, and the devices that it keeps busy."""
    file, user, nodes = TRACES[name]
    trace = read_trace(DATASETS / file)
    trace = select_user(trace, user) if user else trace
    most = nodes * DEVICES_OF_A_NODE
    first_s = trace.jobs[0].submit_s
    kept = tuple(
        replace(job, model="", submit_s=job.submit_s - first_s)
        for job in trace.jobs
        if job.gpus <= most
    )
    trace = replace(trace, jobs=kept)
    busy = summarize(trace).devices_busy
    assert busy is not None
    return trace, busy


def begun_elsewhere(trace: Trace, seed: int) -> Trace:
    """Return the trace from a drawn time on; earlier jobs follow after its end."""
    span_s = trace.jobs[-1].submit_s
    from_s = random.Random(seed).uniform(0, span_s)
    jobs = [replace(job, submit_s=(job.submit_s - from_s) % span_s) for job in trace.jobs]
    return replace(trace, jobs=tuple(sorted(jobs, key=lambda job: job.submit_s)))


@lru_cache
def _predictor(release: Path) -> Predictor:
    return Predictor(load_release(release))


@lru_cache
def _predicted(release: Path, risk: float) -> CachedSlowdowns:
    return CachedSlowdowns(Predicted(_predictor(release), risk=risk), _slowdowns(release))


@lru_cache
def _slowdowns(release: Path) -> Slowdowns:
    """Return the slowdowns that a release has predicted in this process, for any simulation."""
    return {}


def make_forecaster(
    run: Run, ground_truth: MeasuredTruth, cluster: Cluster, world: Measurements, releases: Path
) -> Forecaster:
    """Return the forecaster of a run."""
    if run.forecast == "none":
        return NoForecasts()
    if run.forecast == "table":
        return Table(world)
    if run.forecast == "shipped":
        return _predicted(SHIPPED, run.risk)
    if run.forecast == "retrained":
        of = [_predicted(releases / f"{fold}" / "release", run.risk) for fold in range(FOLDS)]
        return CrossFitted(of, fold_of([one.job.family for one in world.features.values()]))
    return Noisy(Oracle(ground_truth, cluster), spread=run.noise, bias=run.bias, seed=run.seed)


class CachedSlowdowns:
    """Forecaster that predicts the slowdowns of the same co-located jobs once, in any order.

    Simulations with other seeds, loads and traces meet the same models again.

    Parameters
    ----------
    of : Predicted
        Forecaster to ask.
    known : mapping
        Known slowdowns by kind of device and sorted equivalence classes; extended here.
    """

    def __init__(self, of: Predicted, known: Slowdowns) -> None:
        self._of, self._known = of, known

    def predictions(self, requests: Sequence[tuple[Job, str]]) -> list[RuntimePrediction | None]:
        """Return the prediction of each job."""
        return self._of.predictions(requests)

    def slowdowns(
        self, requests: Sequence[tuple[str, tuple[Job, ...]]]
    ) -> list[Sequence[float] | None]:
        """Return the slowdowns of each co-location, from the cache if they are known."""
        new = {}
        for kind, jobs in requests:
            ordered = sorted(jobs, key=_class)
            key = kind, tuple(map(_class, ordered))
            if key not in self._known:
                new[key] = kind, tuple(ordered)
        answers = self._of.slowdowns(list(new.values()))
        for (kind, classes), factors in zip(new, answers, strict=True):
            by_class = zip(classes, _without_missing(factors), strict=True)
            self._known[kind, classes] = dict(by_class)
        return [self._of_jobs(kind, jobs) for kind, jobs in requests]

    def _of_jobs(self, kind: str, jobs: Sequence[Job]) -> list[float]:
        classes = [_class(job) for job in jobs]
        factors = self._known[kind, tuple(sorted(classes))]
        return [factors[one] for one in classes]


def _class(job: Job) -> str:
    return str(job.equivalence_class)


class CrossFitted:
    """Forecaster that predicts every job by a release not trained on the job's family."""

    def __init__(self, of: Sequence[Forecaster], fold: Mapping[str, int]) -> None:
        self._of, self._fold = of, fold

    def _fold_of(self, job: Job) -> int:
        assert job.features is not None
        return self._fold[job.features.job.family]

    def predictions(self, requests: Sequence[tuple[Job, str]]) -> list[RuntimePrediction | None]:
        """Return predictions of each job by the release that was not trained on its family."""
        answers = [forecaster.predictions(requests) for forecaster in self._of]
        return [answers[self._fold_of(job)][i] for i, (job, _) in enumerate(requests)]

    def slowdowns(
        self, requests: Sequence[tuple[str, tuple[Job, ...]]]
    ) -> list[Sequence[float] | None]:
        """Return slowdowns of each member by the release that was not trained on its family."""
        answers = [forecaster.slowdowns(requests) for forecaster in self._of]
        return [
            [_without_missing(answers[self._fold_of(job)][i])[j] for j, job in enumerate(jobs)]
            for i, (_, jobs) in enumerate(requests)
        ]


def _without_missing(slowdowns: Sequence[float] | None) -> Sequence[float]:
    assert slowdowns is not None
    return slowdowns
