"""Simulations of benchmarks/sharing: a day of a real trace on a cluster of shared GPUs.

The jobs are consecutive jobs of the trace of at most half a day, from a drawn time on, as many as
request a given fraction of all devices in a day; their times are compressed into one day. A drawn
part of the single-device jobs is latency-sensitive. Ground truth is Lucid's measurement of
slowdowns and memory. A job that is allocated less compute than it uses slows down in proportion.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from itertools import count
from pathlib import Path
from statistics import mean, median
from typing import Any

from benchmarks.forecast_worth.runs import DATASETS, KIND, MEMORY_BYTES, CrossFitted
from benchmarks.predictors.cross_fitted import FOLDS, fold_of
from presage.models.release.release import load_release
from presage.schedulers.core.action import Action
from presage.schedulers.core.cluster import Cluster, Node
from presage.schedulers.core.forecasts import Forecaster, Forecasts
from presage.schedulers.core.job import Checkpointing, Job
from presage.schedulers.core.job_status import JobStatus
from presage.schedulers.core.policy import Policy
from presage.schedulers.core.queue import Key
from presage.schedulers.core.state import State
from presage.schedulers.forecasters.no_forecasts import NoForecasts
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
from presage.schedulers.traces.trace import Trace
from presage.serving.predictor.predictor import Predictor

DAY_S = 86_400.0
LONGEST_S = 43_200.0  # else a day's work would be done in the two months after it
DEVICES_OF_A_NODE = 8
URGENT = 0.3
RESTART_S = 62.0  # Gu et al., Tiresias, NSDI 2019, 5.2.4: what a preemption costs in the median


@dataclass(frozen=True, slots=True)
class Run:
    """One simulation."""

    nodes: int
    load: float
    policy: str
    forecast: str
    risk: float
    seed: int


def simulated(run: Run, lucid: Path, releases: Path) -> dict[str, Any]:
    """Return the metrics of a schedule and the times of its decisions."""
    world = read_measurements(lucid)
    nodes = tuple(Node(f"n{i}", DEVICES_OF_A_NODE, KIND, MEMORY_BYTES) for i in range(run.nodes))
    cluster = Cluster(nodes)
    trace = attach_models(
        day_of_jobs(run.nodes * DEVICES_OF_A_NODE, run.load, run.seed), world, [KIND], seed=run.seed
    )
    jobs = with_priorities(trace.jobs, run.seed)
    ground_truth = MeasuredTruth(trace.duration_s, world, KIND, shares="caps")
    policy = Timed(policy_of(run.policy))
    forecaster = _forecaster(run, ground_truth, cluster, world, releases)
    done = Simulation(cluster, policy, forecaster, ground_truth, jobs, seed=run.seed)
    began_s = time.process_time()
    done.run()
    took_s = time.process_time() - began_s
    first_day = [one for one in done.results if one.end_s <= DAY_S]
    urgent = [one for one in done.results if one.slo_s < math.inf]
    # SLOs below the solo run time on an exclusive device cannot be met and do not count.
    kept = [one for one in urgent if one.solo_s <= one.slo_s]
    # Excess over the SLO, as a fraction of it.
    late = [
        (one.end_s - one.first_start_s) / one.slo_s - 1
        for one in urgent
        if one.has_violated_slo and one.first_start_s is not None
    ]
    return {
        **asdict(compute_metrics(done)),
        "promised_in_vain_share": 1 - len(kept) / len(urgent) if urgent else None,
        "avoidably_late_share": mean(one.has_violated_slo for one in kept) if kept else None,
        "late_by_median": median(late) if late else 0.0,
        "simulated_jobs": len(jobs),
        "ended_in_a_day": len(first_day),
        "seconds": took_s,
        "decisions": len(policy.took_s),
        "decision_median_s": _quantile(policy.took_s, 0.5),
        "decision_p99_s": _quantile(policy.took_s, 0.99),
        "decision_max_s": max(policy.took_s),
    }


def with_priorities(jobs: Sequence[Job], seed: int) -> list[Job]:
    """Return the jobs with costs of a restart, a drawn part of them latency-sensitive."""
    chosen = random.Random(seed)
    return [
        replace(
            job,
            checkpointing=Checkpointing(restart_s=RESTART_S),
            latency_sensitive=chosen.random() < URGENT and job.gpus == 1,
        )
        for job in jobs
    ]


def bounds_exceeded(risk: float, lucid: Path, releases: Path) -> tuple[int, int]:
    """Return the number of kinds of jobs that exceed their memory bound, and of all kinds."""
    world = read_measurements(lucid)
    cluster = Cluster((Node("n0", 1, KIND, MEMORY_BYTES),))
    ground_truth = MeasuredTruth({}, world, KIND)
    names = world.models_on(KIND)  # that the trace's jobs are drawn from
    jobs = [Job(name, 0.0, model=name, features=world.features[name]) for name in names]
    forecasts = Forecasts(_cross_fitted(world, risk, releases), cluster)
    forecasts.expect(jobs)
    above = [
        forecasts.prediction(j, KIND).memory_bytes < ground_truth.memory_bytes(j, KIND)
        for j in jobs
    ]
    return sum(above), len(jobs)


class Timed(Policy):
    """Policy whose decisions are timed."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.needs = policy.needs
        self.took_s: list[float] = []

    def key(self, job: Job, status: JobStatus, forecasts: Forecasts) -> Key:
        """Return the policy's key."""
        return self._policy.key(job, status, forecasts)

    def decide(self, state: State, forecasts: Forecasts, rng: random.Random) -> Sequence[Action]:
        """Return what the policy decides."""
        began_s = time.process_time()
        actions = self._policy.decide(state, forecasts, rng)
        self.took_s.append(time.process_time() - began_s)
        return actions


@lru_cache
def _philly() -> Trace:
    return read_trace(DATASETS / "philly/philly.csv.gz")


def day_of_jobs(devices: int, load: float, seed: int) -> Trace:
    """Return a day's jobs of the trace from a drawn one on; for a large cluster all, repeated.

    Parameters
    ----------
    devices : int
        Number of devices of the cluster.
    load : float
        Device-seconds that the jobs request, over those of all devices in a day.
    """
    trace = _philly()
    remaining_s = load * devices * DAY_S
    first = random.Random(seed).randrange(len(trace.jobs))
    jobs: list[Job] = []
    duration_s: dict[str, float] = {}
    for job, of in _from(trace, first):
        if remaining_s <= 0:
            break
        takes_s = trace.duration_s[of]
        if takes_s <= LONGEST_S and job.gpus <= devices:
            jobs.append(job)
            duration_s[job.job_id] = takes_s
            remaining_s -= job.gpus * takes_s
    begin_s = jobs[0].submit_s
    pressed = DAY_S / (jobs[-1].submit_s - begin_s)
    moved = [replace(job, submit_s=(job.submit_s - begin_s) * pressed, model="") for job in jobs]
    return replace(trace, jobs=tuple(moved), duration_s=duration_s)


def _from(trace: Trace, first: int) -> Iterator[tuple[Job, str]]:
    """Yield each job and its name from one on, cyclically; repeated jobs get new names."""
    span_s = trace.jobs[-1].submit_s
    for turn in count():
        for i, job in enumerate((*trace.jobs[first:], *trace.jobs[:first])):
            rounds = turn + (i >= len(trace.jobs) - first)
            name = f"{job.job_id}.{turn}" if turn else job.job_id
            yield replace(job, job_id=name, submit_s=job.submit_s + rounds * span_s), job.job_id


def _forecaster(
    run: Run, ground_truth: MeasuredTruth, cluster: Cluster, world: Measurements, releases: Path
) -> Forecaster:
    if run.forecast == "none":
        return NoForecasts()
    if run.forecast == "oracle":
        return Oracle(ground_truth, cluster)
    return _cross_fitted(world, run.risk, releases)


def _cross_fitted(world: Measurements, risk: float, releases: Path) -> Forecaster:
    of = [Predicted(_predictor(releases / f"{i}" / "release"), risk=risk) for i in range(FOLDS)]
    return CrossFitted(of, fold_of([one.job.family for one in world.features.values()]))


@lru_cache
def _predictor(release: Path) -> Predictor:
    return Predictor(load_release(release))


def _quantile(values: list[float], q: float) -> float:
    return sorted(values)[int(q * (len(values) - 1))]
