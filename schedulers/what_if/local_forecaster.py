"""Forecaster that cannot be asked in another process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from presage.schedulers.core.forecasts import Forecaster, RuntimePrediction
from presage.schedulers.core.job import Job
from presage.schedulers.core.speedup import Speedup, SpeedupForecaster, SpeedupRequest


class NeedsForecasterError(RuntimeError):
    """A simulation in another process needs forecasts that are not in its cache."""


class LocalForecaster:
    """Forecaster whose copies in other processes raise :class:`NeedsForecasterError`.

    Forecasters hold connections or models, which cannot be passed to another process.
    """

    def __init__(self, forecaster: Forecaster) -> None:
        self._forecaster = forecaster

    def __reduce__(self) -> tuple[type[LocalForecaster], tuple[Forecaster]]:
        return LocalForecaster, (_ABSENT,)

    def predictions(
        self, requests: Sequence[tuple[Job, str]]
    ) -> Sequence[RuntimePrediction | None]:
        """Return the forecaster's predictions."""
        return self._forecaster.predictions(requests)

    def slowdowns(
        self, requests: Sequence[tuple[str, tuple[Job, ...]]]
    ) -> Sequence[Sequence[float] | None]:
        """Return the forecaster's slowdowns."""
        return self._forecaster.slowdowns(requests)

    def speedups(self, requests: Sequence[SpeedupRequest]) -> Sequence[Speedup | None]:
        """Return the forecaster's speed-ups; None of each if it predicts none."""
        if isinstance(self._forecaster, SpeedupForecaster):
            return self._forecaster.speedups(requests)
        return [None] * len(requests)


class _Absent:
    """Forecaster of another process."""

    def predictions(self, requests: Sequence[tuple[Job, str]]) -> NoReturn:
        raise NeedsForecasterError

    def slowdowns(self, requests: Sequence[tuple[str, tuple[Job, ...]]]) -> NoReturn:
        raise NeedsForecasterError

    def speedups(self, requests: Sequence[SpeedupRequest]) -> NoReturn:
        raise NeedsForecasterError


_ABSENT = _Absent()
