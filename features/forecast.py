"""Forecast: a number with its interval and the release that predicted it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Forecast:
    """A median with an interval that covers the true value with probability ``coverage``.

    ``in_domain`` is false if the job or device lies outside the release's training data; the
    interval then has no calibration guarantee.
    """

    median: float
    low: float
    high: float
    unit: str
    in_domain: bool
    release_id: str
    coverage: float = 0.8
    quantiles: tuple[tuple[float, float], ...] = ()  # additionally requested (level, value)

    def __post_init__(self) -> None:
        if not self.low <= self.median <= self.high:
            raise ValueError(f"forecast out of order: {self.low} <= {self.median} <= {self.high}")
