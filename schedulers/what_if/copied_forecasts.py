"""Forecasts of jobs in simulated futures: a copy has those of the job that it is a copy of."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from presage.schedulers.core.cluster import Cluster
from presage.schedulers.core.forecasts import Forecasts, RuntimePrediction
from presage.schedulers.core.job import Job
from presage.schedulers.core.speedup import Speedup, SpeedupRequest


class Copies:
    """Copies of jobs, by their ids.

    A copy has the forecasts of its original; so has a job with another request.
    """

    def __init__(self) -> None:
        self._originals: dict[str, Job] = {}

    def add(self, copy_id: str, original: Job) -> None:
        """Note that a job is a copy of another one."""
        self._originals[copy_id] = original

    def original(self, job: Job) -> Job:
        """Return the job whose forecasts and run time a job has."""
        return self._originals.get(job.job_id, job)


class OriginalForecasts:
    """Forecasts of originals, which all futures of a question share.

    Parameters
    ----------
    forecasts : Forecasts
        Forecasts of the originals on all kinds of devices that they or their copies may use.
    """

    def __init__(self, forecasts: Forecasts, cluster: Cluster) -> None:
        self.forecasts, self.cluster = forecasts, cluster
        self._known: dict[tuple[str, tuple[str, ...]], tuple[float, tuple[str, ...]]] = {}

    def shortest_s(self, original: Job, kinds: tuple[str, ...]) -> float:
        """Return the run time on the fastest of some kinds; all if there are none."""
        return self._of(original, kinds)[0]

    def too_small(self, original: Job, kinds: tuple[str, ...]) -> tuple[str, ...]:
        """Return those of some kinds that have too little memory, if another one has enough."""
        return self._of(original, kinds)[1]

    def _of(self, original: Job, kinds: tuple[str, ...]) -> tuple[float, tuple[str, ...]]:
        key = original.job_id, kinds
        found = self._known.get(key)
        if found is None:
            allowed = [kind for kind in self.cluster.kinds if not kinds or kind in kinds]
            prediction = self.forecasts.prediction
            runtimes_s = [prediction(original, kind).runtime_s for kind in allowed]
            small = self.forecasts.too_small(original)
            if kinds != original.kinds:
                small = tuple(kind for kind in small if kind in allowed)
                small = small if len(small) < len(allowed) else ()
            found = self._known[key] = min(runtimes_s, default=math.inf), small
        return found


class CopiedForecasts(Forecasts):
    """Forecasts of one future; nothing is requested or cached again for a copy."""

    def __init__(self, originals: OriginalForecasts, copies: Copies) -> None:
        super().__init__(_CopiedForecaster(originals.forecasts), originals.cluster)
        self._originals, self._copies = originals, copies
        # As submitted: the ledger takes kinds with too little memory from a job later.
        self._kinds: dict[str, tuple[str, ...]] = {}

    def expect(self, jobs: Iterable[Job]) -> None:
        """Note the kinds of devices that jobs request; their originals are known."""
        for job in jobs:
            self._submitted(job)

    def forget(self, job: Job) -> None:
        """Drop what is noted of a job that has ended; other futures need its original."""
        self._kinds.pop(job.job_id, None)

    def has_requested(self, job: Job) -> bool:
        """Return True."""
        return True

    def prediction(self, job: Job, kind: str) -> RuntimePrediction:
        """Return the prediction of a job's original."""
        return self._originals.forecasts.prediction(self._copies.original(job), kind)

    def too_small(self, job: Job) -> tuple[str, ...]:
        """Return kinds with too little memory for a job, if another kind has enough."""
        return self._originals.too_small(self._copies.original(job), self._submitted(job))

    def runtime_s(self, job: Job) -> float:
        """Return the run time of a job on its fastest kind; infinite if unknown."""
        return self._originals.shortest_s(self._copies.original(job), self._submitted(job))

    def runtimes_s(self, jobs: Sequence[Job]) -> list[float]:
        """Return :meth:`runtime_s` of several jobs."""
        return [self.runtime_s(job) for job in jobs]

    def _submitted(self, job: Job) -> tuple[str, ...]:
        return self._kinds.setdefault(job.job_id, job.kinds)


class _CopiedForecaster:
    """Source of what is known by the class of a job, which copies share with their originals."""

    def __init__(self, forecasts: Forecasts) -> None:
        self._forecasts = forecasts

    def predictions(self, requests: Sequence[tuple[Job, str]]) -> list[RuntimePrediction | None]:
        """Return nothing: predictions are those of originals."""
        return [None] * len(requests)

    def slowdowns(
        self, requests: Sequence[tuple[str, tuple[Job, ...]]]
    ) -> list[Sequence[float] | None]:
        """Return the predicted slowdowns."""
        return list(self._forecasts.slowdowns(requests))

    def speedups(self, requests: Sequence[SpeedupRequest]) -> list[Speedup | None]:
        """Return the predicted speed-ups."""
        return [
            self._forecasts.speedup(request.job, request.kind, request.gpus, request.nodes)
            for request in requests
        ]
