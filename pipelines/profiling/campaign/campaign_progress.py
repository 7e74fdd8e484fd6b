"""How far a campaign is, and how fast it goes."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a campaign stands, told before every run and at the end."""

    phase: str  # "calibrate", "trace", "alone", "together", "done"
    current: str
    alone: int
    together: int
    failed: int
    elapsed_s: float
    left_s: float


Report = Callable[[Progress], None]


@dataclass
class Pace:
    """How long a kind of run takes, from those made so far."""

    guess_s: float
    taken_s: list[float] = field(default_factory=list)

    @property
    def next_s(self) -> float:
        """Most time the next one should take: runs near the end of a budget do not wait."""
        return 1.5 * statistics.median(self.taken_s[-9:]) if self.taken_s else self.guess_s

    @property
    def mean_s(self) -> float:
        """Mean time of a run."""
        return sum(self.taken_s) / len(self.taken_s) if self.taken_s else self.guess_s
