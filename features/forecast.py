"""Forecast: a number with its interval and the release that predicted it."""

from __future__ import annotations

from dataclasses import dataclass

# With a smaller ratio of errors out of domain to those in domain, the domain check says little.
LEAST_ERROR_RATIO = 1.5
UNKNOWN = "unknown"

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

    Attributes
    ----------
    median, low, high : float
        In ``unit``.
    unit : str
    in_domain : bool
        False if the job or device lies outside the release's training data; the interval then has
        no calibration guarantee.
    release_id : str
    coverage : float
    quantiles : tuple of (float, float)
    domain_error_ratio : float
        Error of jobs out of domain over that of other jobs, both left out of training; 0 if it was
        not measured.
    correction : Correction, optional
        Offset of the server between releases; None if it has learned nothing of such a job or
        device.
    """

    median: float
    low: float
    high: float
    unit: str
    in_domain: bool
    release_id: str
    coverage: float = 0.8
    quantiles: tuple[tuple[float, float], ...] = ()  # additionally requested (level, value)
    domain_error_ratio: float = 0.0
    correction: Correction | None = None

    def __post_init__(self) -> None:
        if not self.low <= self.median <= self.high:
            raise ValueError(f"forecast out of order: {self.low} <= {self.median} <= {self.high}")

    @property
    def domain_check(self) -> str:
        """Result of the domain check: "yes", "no", or "unknown" if it says little of the error."""
        if 0 < self.domain_error_ratio < LEAST_ERROR_RATIO:
            return UNKNOWN
        return "yes" if self.in_domain else "no"
