"""Nobody who foretells: what a policy can do by what users say."""

from __future__ import annotations

from collections.abc import Sequence

from presage.schedulers.core.forecasts import RuntimePrediction
from presage.schedulers.core.job import Job


class NoForecasts:
    """Says nothing of any job."""

    def predictions(self, asked: Sequence[tuple[Job, str]]) -> list[RuntimePrediction | None]:
        """None of each."""
        return [None] * len(asked)

    def slowdowns(
        self, asked: Sequence[tuple[str, tuple[Job, ...]]]
    ) -> list[Sequence[float] | None]:
        """None of each."""
        return [None] * len(asked)
