"""A forecast: never a bare number, always a number with its interval and its source."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Forecast:
    """A median with an interval that covers the truth with probability ``coverage``.

    ``in_domain`` is false when the job or device lies outside of what the release learnt from;
    the interval then promises nothing.
    """

    median: float
    low: float
    high: float
    unit: str
    in_domain: bool
    release_id: str
    coverage: float = 0.8
    quantiles: tuple[tuple[float, float], ...] = ()  # level and value, of those asked for besides

    def __post_init__(self) -> None:
        if not self.low <= self.median <= self.high:
            raise ValueError(f"forecast out of order: {self.low} <= {self.median} <= {self.high}")
