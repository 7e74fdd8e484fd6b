"""Forecasts of jobs for policies: requested in batches, cached, and always usable."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from presage.errors import PresageError
from presage.schedulers.core.allocation import FULL_DEVICE_MILLI
from presage.schedulers.core.failures.hazards import Hazard, HazardForecaster, clean_hazards
from presage.schedulers.core.job import Job
from presage.schedulers.core.reports.change_log import ChangeLog
from presage.schedulers.core.speedup import (
    Speedup,
    SpeedupForecaster,
    SpeedupRequest,
    clean_speedup,
    fewest_nodes,
)

if TYPE_CHECKING:
    from presage.features.hazard.hazard_model import Hazards
    from presage.schedulers.core.cluster import Cluster
    from presage.schedulers.core.state import State

MAX_CACHED_COLOCATIONS = 500_000  # cached predictions of co-locations
MAX_FAILURES = 3  # in a row; each may take as long as a service's deadline

Request = TypeVar("Request")
Response = TypeVar("Response")


class RuntimePrediction(NamedTuple):
    """Prediction for a job that runs on its own on a kind of device.

    Attributes
    ----------
    runtime_s : float
        Median run time of the whole job; infinite if no forecast is available.
    compute_milli : int
        Median compute that each member uses, in thousandths of a device.
    memory_bytes : int
        Upper bound of the memory of each member, at the requested certainty.
    in_domain : bool
        Whether the training data contain similar jobs; else the bounds are not guaranteed.
    setup_s : float
        Part of the run time before the first iteration.
    high_s : float or None
        Upper bound of the run time, at that certainty; None if only a median is predicted.
    release_id : str
        The release that predicted it; "" if the forecaster is no release.
    """

    runtime_s: float
    compute_milli: int
    memory_bytes: int
    in_domain: bool = True
    setup_s: float = 0.0
    high_s: float | None = None
    release_id: str = ""

    @property
    def slo_s(self) -> float:
        """Run time that the SLO of the job allows (requirement N3's preset time)."""
        return self.runtime_s if self.high_s is None else self.high_s

    def remaining_s(self, done: float, elapsed_s: float = 0.0) -> float:
        """Return the run time that remains once a fraction of the iterations is done.

        Before the first iteration it is the run time minus the part of the setup that has passed.
        """
        if done <= 0:
            return self.runtime_s - min(elapsed_s, self.setup_s)
        return (self.runtime_s - self.setup_s) * (1.0 - done) if done < 1 else 0.0


class Forecaster(Protocol):
    """Source of predictions: a service, a release in this process, a table or an oracle."""

    def predictions(
        self, requests: Sequence[tuple[Job, str]]
    ) -> Sequence[RuntimePrediction | None]:
        """Return the prediction of each job on a kind of device, in order; None if unknown."""
        ...

    def slowdowns(
        self, requests: Sequence[tuple[str, tuple[Job, ...]]]
    ) -> Sequence[Sequence[float] | None]:
        """Return the slowdowns of co-located jobs: step time over solo step time of each."""
        ...


class Forecasts:
    """Cached forecasts for a cluster's kinds of devices.

    A prediction that is missing, infinite or NaN becomes an exclusive device and an infinite run
    time, so that a policy gets no exception and co-locates nothing with such a job.

    Parameters
    ----------
    fallback : Forecaster, optional
        Forecaster to use while the first one fails; it must not fail itself.
    initial_failure : str
        Value of :attr:`failure` until the forecaster has answered.
    hazards : HazardForecaster, optional
        Source of the hazards of devices; without it they are all 0.

    Attributes
    ----------
    failures : dict of str to int
        Reasons for which the forecaster failed, with their counts.
    missing : dict of str to int
        Number of jobs without a forecast, by kind of device.
    out_of_domain : dict of str to int
        Number of jobs outside of the forecaster's domain, by kind of device.
    changes : ChangeLog
        Jobs whose known predictions were dropped or requested again.
    """

    def __init__(
        self,
        forecaster: Forecaster,
        cluster: Cluster,
        fallback: Forecaster | None = None,
        *,
        initial_failure: str = "",
        hazards: HazardForecaster | None = None,
    ) -> None:
        self._forecaster, self._fallback = forecaster, fallback
        self._hazards = hazards
        self._failed = 0  # in a row
        self._answered, self._initial_failure = False, initial_failure
        self._expected: dict[str, Job] = {}
        self._known: dict[str, dict[str, RuntimePrediction]] = {}
        self._too_small: dict[str, tuple[str, ...]] = {}
        self._runtime_s: dict[str, float] = {}  # shortest of each job: the most frequent look-up
        self._slowdowns: dict[tuple[str, tuple[object, ...]], tuple[float, ...]] = {}
        self._speedups: dict[tuple[object, ...], Speedup] = {}
        self._memory, self._cluster = dict(cluster.memory_of), cluster
        self.failures: dict[str, int] = {}
        self.missing: dict[str, int] = {}
        self.out_of_domain: dict[str, int] = {}
        self.changes = ChangeLog()

    @property
    def failure(self) -> str:
        """Reason why no forecasts are available; "" once the forecaster answers."""
        return next(iter(self.failures), "" if self._answered else self._initial_failure)

    def expect(self, jobs: Iterable[Job]) -> None:
        """Announce jobs; all are requested in one batch when the first of them is looked up."""
        self._expected.update((job.job_id, job) for job in jobs)

    def has_requested(self, job: Job) -> bool:
        """Return whether a job was requested already."""
        return job.job_id in self._known

    def _request_predictions(self, job: Job) -> None:
        """Request a job and all announced jobs, on every kind that they allow."""
        expected, self._expected = self._expected, {}
        jobs = expected if job.job_id in expected else {**expected, job.job_id: job}
        requests: list[tuple[Job, str]] = []
        for job_id, pending in jobs.items():
            if job_id in self._known:
                self.changes.note(job_id)
            self._known[job_id], self._runtime_s[job_id] = {}, math.inf
            kinds = pending.kinds or self._memory
            requests += [(pending, kind) for kind in self._memory if kind in kinds]
        answers = self._request(self._forecaster.predictions, requests)
        if answers is None:
            answers = (
                self._fallback.predictions(requests) if self._fallback else [None] * len(requests)
            )
        for (requested, kind), prediction in zip(requests, answers, strict=True):
            job_id, clean = requested.job_id, self._clean(prediction, kind)
            self._known[job_id][kind] = clean
            self._runtime_s[job_id] = min(self._runtime_s[job_id], clean.runtime_s)
            if job_id not in expected:  # an ended job that stands for its equivalence class
                continue
            if prediction is None:
                self.missing[kind] = self.missing.get(kind, 0) + 1
            elif not prediction.in_domain:
                self.out_of_domain[kind] = self.out_of_domain.get(kind, 0) + 1
        for job_id, bounds in _memory_bounds(requests, answers).items():
            if small := self._kinds_too_small(bounds):
                self._too_small[job_id] = small
            else:
                self._too_small.pop(job_id, None)

    def _kinds_too_small(self, bounds: Mapping[str, float]) -> tuple[str, ...]:
        """Return the kinds whose memory is below the predicted bound; none if all are."""
        small = tuple(
            kind for kind, most_bytes in bounds.items() if most_bytes > self._memory[kind]
        )
        return small if len(small) < len(bounds) else ()

    def forget(self, job: Job) -> None:
        """Drop the cached predictions of a job that has ended."""
        if self._known.pop(job.job_id, None) is not None:
            self.changes.note(job.job_id)
        self._too_small.pop(job.job_id, None)
        self._runtime_s.pop(job.job_id, None)
        self._expected.pop(job.job_id, None)

    def prediction(self, job: Job, kind: str) -> RuntimePrediction:
        """Return the prediction of a job on a kind of device."""
        return self._predictions_of(job).get(kind) or self._clean(None, kind)

    def too_small(self, job: Job) -> tuple[str, ...]:
        """Return kinds with too little memory for a job, if another kind has enough."""
        self._predictions_of(job)
        return self._too_small.get(job.job_id, ())

    def runtime_s(self, job: Job) -> float:
        """Return the run time of a job on its fastest kind; infinite if unknown."""
        if job.job_id not in self._runtime_s:
            self._request_predictions(job)
        return self._runtime_s[job.job_id]

    def runtimes_s(self, jobs: Sequence[Job]) -> list[float]:
        """Return :meth:`runtime_s` of several jobs."""
        known = self._runtime_s
        found = [known.get(job.job_id) for job in jobs]
        return [
            self.runtime_s(job) if one is None else one
            for job, one in zip(jobs, found, strict=True)
        ]

    def slowdowns(self, requests: Sequence[tuple[str, tuple[Job, ...]]]) -> list[tuple[float, ...]]:
        """Return the slowdowns of co-located jobs, at least 1; infinite if unknown.

        All co-locations that are not cached are requested in one batch, jobs of one equivalence
        class once.
        """
        keys = [(kind, tuple(job.equivalence_class for job in jobs)) for kind, jobs in requests]
        new = {
            key: (kind, jobs)
            for key, (kind, jobs) in zip(keys, requests, strict=True)
            if key not in self._slowdowns
        }
        if new:
            if len(self._slowdowns) > MAX_CACHED_COLOCATIONS:
                self._slowdowns = {
                    key: self._slowdowns[key] for key in keys if key in self._slowdowns
                }
            answers = self._request(self._forecaster.slowdowns, list(new.values()))
            if answers is None:
                answers = [None] * len(new)
            for (key, (_, jobs)), factors in zip(new.items(), answers, strict=True):
                self._slowdowns[key] = _clean_slowdowns(factors, len(jobs))
        return [self._slowdowns[key] for key in keys]

    def speedup(self, job: Job, kind: str, gpus: int, nodes: int) -> Speedup:
        """Return the predicted speed on ``gpus`` devices of ``nodes`` nodes over that as requested.

        As requested means on ``job.gpus`` devices of as few nodes as possible. Without a forecast
        no number of devices speeds a job up.
        """
        return self.speedups(job, kind, [(gpus, nodes)])[0]

    def speedups(self, job: Job, kind: str, sizes: Sequence[tuple[int, int]]) -> list[Speedup]:
        """Return :meth:`speedup` for several (devices, nodes), requested in one batch."""
        shared = job.equivalence_class, job.gpus, kind
        if len(self._speedups) > MAX_CACHED_COLOCATIONS:
            self._speedups = {}
        new = [size for size in dict.fromkeys(sizes) if (*shared, *size) not in self._speedups]
        if new:
            self._request_speedups(job, kind, new)
        return [self._speedups[*shared, *size] for size in sizes]

    def _request_speedups(self, job: Job, kind: str, sizes: Sequence[tuple[int, int]]) -> None:
        least = fewest_nodes(job.gpus, self._cluster.nodes_of((kind,)).largest)
        requests = [SpeedupRequest(job, kind, gpus, nodes, least) for gpus, nodes in sizes]
        answers: Sequence[Speedup | None] | None = None
        if isinstance(self._forecaster, SpeedupForecaster):
            answers = self._request(self._forecaster.speedups, requests)
        if answers is None:
            answers = [None] * len(requests)
        for request, answer in zip(requests, answers, strict=True):
            key = (job.equivalence_class, job.gpus, kind, request.gpus, request.nodes)
            self._speedups[key] = clean_speedup(answer, job, request.gpus)

    @property
    def has_hazards(self) -> bool:
        """Whether there is a source of hazards."""
        return self._hazards is not None

    def hazards(self, state: State, within_s: float, *, interval: bool = False) -> Hazards:
        """Return the probability that each device fails within ``within_s`` of uptime.

        They depend on the outages until ``state.now_s``. All are 0 if there is no source, or if it
        fails; the hazard of a device is 1 if it is not a number.

        Parameters
        ----------
        interval : bool
            Whether to compute the bounds of an 80 % interval as well, which takes milliseconds;
            else they equal the probabilities.
        """
        found: Hazards | None = None
        if self._hazards is not None:
            try:
                found = self._hazards.hazards(state, within_s, interval=interval)
            except (PresageError, ValueError, ArithmeticError) as error:
                self.failures[str(error)] = self.failures.get(str(error), 0) + 1
        return clean_hazards(found, state.cluster.devices)

    def hazard(self, state: State, device: int, within_s: float) -> Hazard:
        """Return the hazard of one device, with its interval."""
        found = self.hazards(state, within_s, interval=True)
        return Hazard(*(float(values[device]) for values in found))

    def _predictions_of(self, job: Job) -> Mapping[str, RuntimePrediction]:
        """Return the predictions of a job by kind."""
        if job.job_id not in self._known:
            self._request_predictions(job)
        return self._known[job.job_id]

    def _request(
        self,
        ask: Callable[[Sequence[Request]], Sequence[Response | None]],
        requests: Sequence[Request],
    ) -> Sequence[Response | None] | None:
        """Return the forecaster's response; None if it fails, or failed too often in a row."""
        if self._failed < MAX_FAILURES:
            try:
                answers = ask(requests)
            except (PresageError, ValueError, ArithmeticError) as error:
                self._failed += 1
                self.failures[str(error)] = self.failures.get(str(error), 0) + 1
            else:
                self._failed = 0
                self._answered = self._answered or bool(requests)
                return answers
        return None

    def _clean(self, prediction: RuntimePrediction | None, kind: str) -> RuntimePrediction:
        all_bytes = self._memory[kind]
        if prediction is None:
            return RuntimePrediction(math.inf, FULL_DEVICE_MILLI, all_bytes)
        runtime_s, compute_milli, memory_bytes, in_domain, setup_s, high_s, release_id = prediction
        known = math.isfinite(compute_milli) and math.isfinite(memory_bytes)
        if not known or not compute_milli >= 0 or not memory_bytes > 0:
            compute_milli, memory_bytes = FULL_DEVICE_MILLI, all_bytes
        if not math.isfinite(runtime_s) or not runtime_s >= 0:
            runtime_s, setup_s, high_s = math.inf, 0.0, None
        return RuntimePrediction(
            runtime_s,
            min(max(1, int(compute_milli)), FULL_DEVICE_MILLI),
            min(int(memory_bytes), all_bytes),
            in_domain,
            min(max(0.0, setup_s), runtime_s) if math.isfinite(setup_s) else 0.0,
            None if high_s is None or math.isnan(high_s) else max(0.0, high_s),
            release_id,
        )


def _memory_bounds(
    requests: Sequence[tuple[Job, str]], answers: Sequence[RuntimePrediction | None]
) -> dict[str, dict[str, float]]:
    """Return the predicted memory bounds, by job and kind."""
    found: dict[str, dict[str, float]] = {}
    for (job, kind), prediction in zip(requests, answers, strict=True):
        if prediction is not None and 0 < prediction.memory_bytes < math.inf:
            found.setdefault(job.job_id, {})[kind] = prediction.memory_bytes
    return found


def _clean_slowdowns(factors: Sequence[float] | None, jobs: int) -> tuple[float, ...]:
    if factors is None or len(factors) != jobs:
        return (math.inf,) * jobs
    return tuple(max(1.0, float(s)) if math.isfinite(s) else math.inf for s in factors)
