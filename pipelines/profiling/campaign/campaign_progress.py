"""Progress and pace of a campaign."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a campaign, reported before every run and at the end.

    ``foreign_load`` is the median share of the device that other processes used; 0 if unknown.
    """

    phase: str  # "calibrate", "trace", "solo", "colocated", "done"
    current: str
    solo: int
    colocated: int
    failed: int
    elapsed_s: float
    left_s: float
    foreign_load: float = 0.0


Report = Callable[[Progress], None]


@dataclass
class Pace:
    """Duration of a kind of run, estimated from previous runs."""

    guess_s: float
    duration_s: list[float] = field(default_factory=list)

    @property
    def next_s(self) -> float:
        """Maximum duration expected of the next run: 1.5 times the median of the last nine."""
        return 1.5 * statistics.median(self.duration_s[-9:]) if self.duration_s else self.guess_s

    @property
    def mean_s(self) -> float:
        """Mean duration of a run."""
        return sum(self.duration_s) / len(self.duration_s) if self.duration_s else self.guess_s
