"""Cache of forecasts for live clusters, whose jobs, device kinds and releases change."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from presage.features.job.job_description import JobFeatures
from presage.schedulers.core.cluster import Cluster
from presage.schedulers.core.failures.hazards import HazardForecaster
from presage.schedulers.core.forecasts import Forecaster, Forecasts
from presage.schedulers.core.job import Job

RETRY_S = 15.0  # delay before a failed forecaster is retried; doubles with each failure
MOST_RETRY_S = 60.0
STALE_S = 300.0  # age after which forecasts are rebuilt, because a newer release may be served


class PredictionCache:
    """Cache of forecasts, rebuilt when stale, after failures, or when the device kinds change.

    Parameters
    ----------
    make_forecaster : callable
        Returns a forecaster with an empty cache.
    fallback : Forecaster, optional
        Forecaster used while the first one fails.
    hazards : HazardForecaster, optional
        Source of the hazards of devices.
    """

    def __init__(
        self,
        make_forecaster: Callable[[], Forecaster],
        fallback: Forecaster | None = None,
        *,
        hazards: HazardForecaster | None = None,
    ) -> None:
        self._make_forecaster, self._fallback = make_forecaster, fallback
        self._hazards = hazards
        self._forecasts: Forecasts | None = None
        self._since_s, self._retry_s = 0.0, RETRY_S
        self._kinds: object = None
        self._features: dict[str, JobFeatures | None] = {}

    def get(self, cluster: Cluster, now_s: float) -> Forecasts:
        """Return the forecasts for a cluster at a time."""
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
                self._make_forecaster(),
                cluster,
                self._fallback,
                initial_failure=self.failure,
                hazards=self._hazards,
            )
            self._since_s, self._kinds = now_s, kinds
            self._features = {}
        return self._forecasts

    def expect(self, forecasts: Forecasts, jobs: Sequence[Job]) -> None:
        """Request the forecasts of jobs in one batch; new features are predicted again."""
        for job in jobs:
            if self._features.get(job.job_id, job.features) is not job.features:
                forecasts.forget(job)
                del self._features[job.job_id]
        forecasts.expect(job for job in jobs if job.job_id not in self._features)
        self._features.update((job.job_id, job.features) for job in jobs)

    @property
    def failure(self) -> str:
        """Reason for which forecasts are unavailable; "" while they are available or unused."""
        return "" if self._forecasts is None else self._forecasts.failure
