"""Forecasts for as long as they are true: a live cluster's jobs, kinds and releases change."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from presage.features.job.job import JobFeatures
from presage.schedulers.core.cluster import Cluster
from presage.schedulers.core.forecasts import Forecaster, Forecasts
from presage.schedulers.core.job import Job

RETRY_S = 15.0  # until a forecaster that failed is asked again; then twice as long, and so on
MOST_RETRY_S = 60.0
STALE_S = 300.0  # then a newer release may be served


class PredictionCache:
    """Forecasts, made anew when they are old, something failed, or the cluster has other kinds.

    Parameters
    ----------
    made : callable
        A forecaster that remembers nothing yet.
    otherwise : Forecaster, optional
        Whose words count while that one gives no answer.
    """

    def __init__(self, made: Callable[[], Forecaster], otherwise: Forecaster | None = None) -> None:
        self._made, self._otherwise = made, otherwise
        self._forecasts: Forecasts | None = None
        self._since_s, self._retry_s = 0.0, RETRY_S
        self._kinds: object = None
        self._features: dict[str, JobFeatures | None] = {}

    def of(self, cluster: Cluster, now_s: float) -> Forecasts:
        """For a cluster, at a time."""
        kinds, age_s = dict(cluster.memory_of), now_s - self._since_s
        if (
            self._forecasts is None
            or kinds != self._kinds
            or not 0 <= age_s < STALE_S  # clocks are set back, too
            or (self._forecasts.failures and age_s >= self._retry_s)
        ):
            failed = self._forecasts is not None and self._forecasts.failures
            self._retry_s = min(2 * self._retry_s, MOST_RETRY_S) if failed else RETRY_S
            self._forecasts = Forecasts(
                self._made(), cluster, self._otherwise, earlier=self.failure
            )
            self._since_s, self._kinds = now_s, kinds
            self._features = {}
        return self._forecasts

    def expect(self, forecasts: Forecasts, jobs: Sequence[Job]) -> None:
        """All that are asked for next, at once; a job that is described otherwise is asked anew."""
        for job in jobs:
            if self._features.get(job.job_id, job.features) is not job.features:
                forecasts.forget(job)
                del self._features[job.job_id]
        forecasts.expect(job for job in jobs if job.job_id not in self._features)
        self._features.update((job.job_id, job.features) for job in jobs)

    @property
    def failure(self) -> str:
        """Why nothing is foretold; "" while something is, or was never asked for."""
        return "" if self._forecasts is None else self._forecasts.failure
