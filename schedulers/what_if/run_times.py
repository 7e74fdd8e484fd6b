"""Run times of the jobs of a snapshot: drawn from forecasts, given what the jobs have done."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from random import Random

from presage.schedulers.core.forecasts import Forecasts, RuntimePrediction
from presage.schedulers.core.job import Job
from presage.schedulers.core.job_status import JobStatus, Phase
from presage.schedulers.what_if.forecast_errors import ForecastErrors, Observed, log_spread
from presage.schedulers.what_if.snapshot import Snapshot

MIN_DONE = 0.01  # fraction of a job from which its own pace is used
_MOST_LOG = 300.0  # logarithm of a run time over its forecast; exp() raises above 709


class Source(StrEnum):
    """Origin of a run time."""

    PACE = "its measured pace"
    FORECAST = "its forecast"
    LEARNT = "its forecast, corrected by jobs of its class that have run"
    LIMIT = "a random part of its time limit"  # without a forecast that holds
    OUT_OF_DOMAIN = "none: its forecast is out of domain"
    MISSING = "none: it has no forecast"


UNKNOWN = frozenset({Source.OUT_OF_DOMAIN, Source.MISSING})


@dataclass(frozen=True, slots=True)
class RunTime:
    """Run time of a job on its requested devices, relative to its forecasts by kind of device.

    Attributes
    ----------
    factor : float
        Run time over the median forecast.
    known_s : float
        Run time on ``kind`` if it is known without a forecast; else infinite.
    kind : str
        Kind of device of ``known_s``; "" for all kinds.
    limit_s : float
        Run time of the whole job at which its time limit ends it.
    """

    factor: float = 1.0
    known_s: float = math.inf
    kind: str = ""
    limit_s: float = math.inf


class RunTimes:
    """Distribution of the run times of all jobs of a snapshot.

    Parameters
    ----------
    forecasts : Forecasts
        Forecasts of the jobs, of those that have ended included.
    high_quantile : float
        Probability that a run time is below ``RuntimePrediction.high_s``.

    Attributes
    ----------
    elapsed_s : dict of str to float
        Run time so far of the jobs whose pace is not measured.
    """

    def __init__(self, snapshot: Snapshot, forecasts: Forecasts, high_quantile: float) -> None:
        self._snapshot, self._forecasts = snapshot, forecasts
        self._high_quantile = high_quantile
        self._on_device = _running_by_device(snapshot)
        self._paces = dict(self._measured_paces())
        self.elapsed_s = dict(self._elapsed())
        self._spreads: dict[str, float] = {}
        self._errors = ForecastErrors(self._observed())
        self._least = self._least_errors()

    @property
    def observed(self) -> int:
        """Number of jobs whose run times correct the forecasts."""
        return self._errors.count

    def source(self, job: Job) -> Source:
        """Return the origin of a job's run time."""
        if job.job_id in self._paces:
            return Source.PACE
        prediction = self._prediction(job)
        is_known = math.isfinite(prediction.runtime_s)
        if is_known and self._errors.has_observed(job.equivalence_class):
            return Source.LEARNT
        if is_known and prediction.in_domain:
            return Source.FORECAST
        if job.job_id in self._snapshot.limits_s:
            return Source.LIMIT
        return Source.OUT_OF_DOMAIN if is_known else Source.MISSING

    def draw(self, rng: Random) -> Callable[[str, Job], RunTime]:
        """Return a function that draws the run times of one sample.

        It takes the id of a job and the job whose forecast it has: the job itself, or the one that
        it is a copy of. It returns the same run time for the same id.
        """
        errors, common = self._errors, self._errors.draw_common(rng)
        of_class: dict[Hashable, float] = {}
        drawn: dict[str, RunTime] = {}
        seed = rng.getrandbits(62)

        def draw_job(job_id: str, original: Job) -> RunTime:
            found = drawn.get(job_id)
            if found is None:
                found = drawn[job_id] = draw_new(job_id, original)
            return found

        def draw_new(job_id: str, original: Job) -> RunTime:
            limit_s = self._limit_s(job_id, original)
            if original.job_id in self._paces:
                return RunTime(1.0, *self._paces[original.job_id], limit_s)
            if self.source(original) is Source.LIMIT:
                return RunTime(1.0, self._part_of_limit_s(job_id, limit_s, seed))
            spread, key = self._spread(original), original.equivalence_class
            least = self._least_factor(original) if job_id == original.job_id else 0.0
            if not spread:
                return RunTime(max(1.0, least), limit_s=limit_s)
            # Seeds by class and job: a draw does not depend on the order in which jobs start.
            if key not in of_class:
                own = Random(f"{seed} {key!r}")  # noqa: S311 - not used for secrets
                of_class[key] = errors.draw_of_class(key, common, own, self._least.get(key, ()))
            own = Random(f"{seed} {job_id}")  # noqa: S311
            bound = math.log(least) / spread if least > 0 else -math.inf
            error = errors.draw_of_job(of_class[key], spread, own, bound)
            log_factor = min(_MOST_LOG, spread * error)
            return RunTime(max(least, math.exp(log_factor)), limit_s=limit_s)

        return draw_job

    # ----------------------------------------------------------------------------------------

    def _limit_s(self, job_id: str, original: Job) -> float:
        """Return the run time of the whole job at which its time limit ends it."""
        limit_s, snapshot = self._snapshot.limits_s.get(original.job_id, math.inf), self._snapshot
        if limit_s == math.inf:
            return limit_s
        if job_id not in self._paces:
            return limit_s + self._ran_before_s(job_id)
        ran_s = snapshot.active[job_id].seconds_since_start(snapshot.now_s)
        left = 1.0 - snapshot.progress.at(job_id, snapshot.now_s)
        return max(0.0, limit_s - ran_s) / left if left > 0 else math.inf

    def _ran_before_s(self, job_id: str) -> float:
        """Return the run time before the last start, or the next one: limits count from a start."""
        elapsed_s, status = self.elapsed_s.get(job_id, 0.0), self._snapshot.active.get(job_id)
        if elapsed_s and status is not None and status.phase is Phase.RUNNING:
            return max(0.0, elapsed_s - status.seconds_since_start(self._snapshot.now_s))
        return elapsed_s

    def _part_of_limit_s(self, job_id: str, limit_s: float, seed: int) -> float:
        """Draw a run time between the time that a job has run and its time limit.

        Real jobs use a part of their limits that is about uniform (Mu'alem, Feitelson: Utilization,
        predictability, workloads, and user runtime estimates in scheduling the IBM SP2 with
        backfilling, IEEE TPDS 12(6), 2001, section 4).
        """
        least_s = self.elapsed_s.get(job_id, 0.0)
        own = Random(f"{seed} {job_id}")  # noqa: S311 - not used for secrets
        return own.uniform(min(least_s, limit_s), limit_s)

    def _prediction(self, job: Job) -> RuntimePrediction:
        """Return the forecast on the kind that the job is on, else on its fastest kind."""
        cluster = self._snapshot.cluster
        status = self._snapshot.active.get(job.job_id)
        if status is not None and status.allocations:
            return self._forecasts.prediction(job, cluster.kind_of(status.allocations[0].device))
        kinds = [kind for kind in cluster.kinds if not job.kinds or kind in job.kinds]
        found = [self._forecasts.prediction(job, kind) for kind in kinds]
        return min(
            found, key=lambda one: one.runtime_s, default=RuntimePrediction(math.inf, 1000, 0)
        )

    def _spread(self, job: Job) -> float:
        spread = self._spreads.get(job.job_id)
        if spread is None:
            spread = log_spread(self._prediction(job), self._high_quantile)
            self._spreads[job.job_id] = spread
        return spread

    def _measured_paces(self) -> Iterator[tuple[str, tuple[float, str]]]:
        """Yield the solo run time of each running job with a measured pace, and its kind."""
        snapshot = self._snapshot
        for job_id, status in snapshot.active.items():
            pace_s = snapshot.progress.pace_s(job_id)
            done = snapshot.progress.at(job_id, snapshot.now_s)
            if status.phase is Phase.RUNNING and pace_s > 0 and done >= MIN_DONE:
                if job_id in snapshot.estimated:
                    continue
                kind = snapshot.cluster.kind_of(status.allocations[0].device)
                solo_s = pace_s / self._slowdown(job_id, status)
                yield job_id, (solo_s * self._speedup(job_id, status, kind), kind)

    def _speedup(self, job_id: str, status: JobStatus, kind: str) -> float:
        """Return the predicted speed of a running job over that on its requested devices."""
        job, node_of = self._snapshot.jobs[job_id], self._snapshot.cluster.node_of
        members = len(status.allocations)
        if members == job.gpus:
            return 1.0
        nodes = len({node_of[allocation.device] for allocation in status.allocations})
        return self._forecasts.speedup(job, kind, members, nodes).median

    def _slowdown(self, job_id: str, status: JobStatus) -> float:
        """Return the predicted slowdown of a running job by the jobs on its devices."""
        largest = 1.0
        for allocation in status.allocations:
            here = self._on_device.get(allocation.device, ())
            if len(here) > 1:
                kind = self._snapshot.cluster.kind_of(allocation.device)
                jobs = tuple(self._snapshot.jobs[other] for other in here)
                (slowdowns,) = self._forecasts.slowdowns([(kind, jobs)])
                own = slowdowns[here.index(job_id)]
                largest = max(largest, own if math.isfinite(own) else 1.0)
        return largest

    def _elapsed(self) -> Iterator[tuple[str, float]]:
        """Yield the run time so far of jobs without a measured pace that have run."""
        snapshot = self._snapshot
        for job_id in snapshot.jobs:
            status = snapshot.status(job_id)
            if status is None or not status.starts or job_id in self._paces:
                continue
            job = snapshot.jobs[job_id]
            ran_s = status.attained_at(snapshot.now_s) / job.gpus
            if status.starts > 1 and not snapshot.progress.at(job_id, snapshot.now_s):
                # It restarted without a checkpoint.
                is_on = bool(status.allocations)
                ran_s = status.seconds_since_start(snapshot.now_s) if is_on else 0.0
            if ran_s > 0:
                yield job_id, ran_s

    def _observed(self) -> Iterator[Observed]:
        """Yield the jobs whose run times are known."""
        for past in self._snapshot.past.jobs:
            if past.is_finished and past.ran_s and not past.job.is_elastic:
                kinds = [past.kind] if past.kind else list(self._snapshot.cluster.kinds)
                if len(kinds) == 1:
                    yield from self._error(past.job, kinds[0], past.ran_s)
        for job_id, (known_s, kind) in self._paces.items():
            job, status = self._snapshot.jobs[job_id], self._snapshot.active[job_id]
            if len(status.allocations) == job.gpus:
                yield from self._error(job, kind, known_s)

    def _error(self, job: Job, kind: str, ran_s: float) -> Iterator[Observed]:
        if kind not in self._snapshot.cluster.kinds:
            return
        prediction = self._forecasts.prediction(job, kind)
        spread = log_spread(prediction, self._high_quantile)
        if spread > 0:
            error = math.log(ran_s / prediction.runtime_s) / spread
            yield Observed(job.equivalence_class, error, spread, prediction.runtime_s)

    def _least_errors(self) -> dict[Hashable, list[tuple[float, float]]]:
        """Return the least errors of the jobs of each class, and their spreads."""
        found: dict[Hashable, list[tuple[float, float]]] = {}
        for job_id in self.elapsed_s:
            job = self._snapshot.jobs[job_id]
            spread, least = self._spread(job), self._least_factor(job)
            if spread > 0 and least > 0:
                found.setdefault(job.equivalence_class, []).append(
                    (math.log(least) / spread, spread)
                )
        return found

    def _least_factor(self, job: Job) -> float:
        """Return the run time so far over the median forecast; 0 if it has not run."""
        elapsed_s = self.elapsed_s.get(job.job_id, 0.0)
        median_s = self._prediction(job).runtime_s if elapsed_s else math.inf
        return elapsed_s / median_s if median_s > 0 else 0.0


def _running_by_device(snapshot: Snapshot) -> Mapping[int, list[str]]:
    """Return the running jobs of each device."""
    found: dict[int, list[str]] = {}
    for job_id, status in snapshot.active.items():
        if status.phase is Phase.RUNNING:
            for allocation in status.allocations:
                found.setdefault(allocation.device, []).append(job_id)
    return found
