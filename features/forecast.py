"""Forecast: a number with its interval and the release that predicted it."""

from __future__ import annotations

from dataclasses import dataclass

# What outcomes behind a correction have in common with a forecast: all, or only a part.
JOB_ON_DEVICE, DEVICE, PRECISION, JOB, COLOCATED_JOBS = CORRECTION_SOURCES = (
    "job on the device", "device", "precision", "job", "co-located jobs",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Correction:
    """Offset that reported outcomes add to the forecast of a release.

    Attributes
    ----------
    factor : float
        On the release's median; on the odds of a fraction.
    runs : int
        Outcomes that it was learned from.
    source : str
        One of ``CORRECTION_SOURCES``: what they have in common with the forecast.
    """

    factor: float
    runs: int
    source: str


@dataclass(frozen=True, slots=True)
class Forecast:
    """A median with an interval that covers the true value with probability ``coverage``.

    ``in_domain`` is false if the job or device lies outside the release's training data; the
    interval then has no calibration guarantee. ``correction`` is that of the server between
    releases, None if it has learned nothing of such a job or device.
    """

    median: float
    low: float
    high: float
    unit: str
    in_domain: bool
    release_id: str
    coverage: float = 0.8
    quantiles: tuple[tuple[float, float], ...] = ()  # additionally requested (level, value)
    correction: Correction | None = None

    def __post_init__(self) -> None:
        if not self.low <= self.median <= self.high:
            raise ValueError(f"forecast out of order: {self.low} <= {self.median} <= {self.high}")
