"""Forecaster without forecasts: policies use the values that users request."""

from __future__ import annotations

from collections.abc import Sequence

from presage.schedulers.core.forecasts import RuntimePrediction
from presage.schedulers.core.job import Job


class NoForecasts:
    """Forecaster that has no forecast for any job."""

    def predictions(self, requests: Sequence[tuple[Job, str]]) -> list[RuntimePrediction | None]:
        """Return None for each job."""
        return [None] * len(requests)

    def slowdowns(
        self, requests: Sequence[tuple[str, tuple[Job, ...]]]
    ) -> list[Sequence[float] | None]:
        """Return None for each co-location."""
        return [None] * len(requests)
