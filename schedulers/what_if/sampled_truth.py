"""Ground truth of one sample: run times drawn from forecasts, predicted slowdowns."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from presage.schedulers.core.allocation import FULL_DEVICE_MILLI
from presage.schedulers.core.forecasts import Forecasts
from presage.schedulers.core.job import Job
from presage.schedulers.simulator.ground_truth.ground_truth import GroundTruth
from presage.schedulers.what_if.copied_forecasts import Copies
from presage.schedulers.what_if.run_times import RunTime


class SampledTruth(GroundTruth):
    """Ground truth in which each job has a drawn run time.

    No job runs out of memory. Jobs without a forecast of their co-location share the time of a
    device by their compute.

    Parameters
    ----------
    run_time : callable
        Returns the run time of a job's original; None if it is unknown.
    unknown_s : float
        Run time of a job whose run time is unknown.
    """

    def __init__(
        self,
        forecasts: Forecasts,
        copies: Copies,
        run_time: Callable[[Job], RunTime | None],
        unknown_s: float,
    ) -> None:
        self._forecasts, self._copies = forecasts, copies
        self._run_time, self._unknown_s = run_time, unknown_s

    def solo_s(self, job: Job, kind: str, gpus: int) -> float:
        """Return the drawn run time, divided by the predicted speed-up of other devices."""
        original = self._copies.original(job)
        drawn = self._run_time(job)
        if drawn is None:
            return self._unknown_s
        solo_s = self._on_requested(original, kind, drawn)
        if gpus != original.gpus:
            solo_s /= self._forecasts.speedup(original, kind, gpus, 1).median
        share = job.compute_milli / original.compute_milli
        if share < 1:  # it has less of a device than it requested
            needed = self._forecasts.prediction(original, kind).compute_milli
            solo_s *= max(1.0, min(needed, original.compute_milli) / job.compute_milli)
        return min(solo_s, drawn.limit_s)

    def _on_requested(self, job: Job, kind: str, drawn: RunTime) -> float:
        median_s = self._forecasts.prediction(job, kind).runtime_s
        if drawn.known_s == math.inf:
            return median_s * drawn.factor
        known_on_s = (
            self._forecasts.prediction(job, drawn.kind).runtime_s
            if drawn.kind and drawn.kind != kind
            else math.inf
        )
        is_comparable = 0 < known_on_s < math.inf and median_s < math.inf
        return drawn.known_s * (median_s / known_on_s if is_comparable else 1.0)

    def compute_milli(self, job: Job, kind: str) -> int:
        """Return the predicted compute."""
        return self._forecasts.prediction(self._copies.original(job), kind).compute_milli

    def memory_bytes(self, job: Job, kind: str) -> int:
        """Return 0: no job runs out of memory."""
        return 0

    def fits(self, kind: str, memory_bytes: int, members: Sequence[Job]) -> bool:
        """Return True."""
        return True

    def spread(self, job: Job, kind: str, gpus: int, nodes: int) -> float:
        """Return the predicted run time on several nodes over that on one; at least 1."""
        original = self._copies.original(job)
        on_one, on_several = self._forecasts.speedups(original, kind, [(gpus, 1), (gpus, nodes)])
        return max(1.0, on_one.median / on_several.median)

    def slowdowns(self, kind: str, members: Sequence[tuple[Job, int]]) -> Sequence[float]:
        """Return the predicted slowdowns."""
        jobs = tuple(self._copies.original(job) for job, _ in members)
        (found,) = self._forecasts.slowdowns([(kind, jobs)])
        if all(map(math.isfinite, found)):
            return found
        busy = sum(self._forecasts.prediction(job, kind).compute_milli for job in jobs)
        shared = max(1.0, busy / FULL_DEVICE_MILLI)
        return [slowdown if math.isfinite(slowdown) else shared for slowdown in found]
