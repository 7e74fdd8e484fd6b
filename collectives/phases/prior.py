"""Prior of the phases of a job: what is predicted before its iterations have repeated."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Prior:
    """Served forecast of a job, for its first iterations.

    Attributes
    ----------
    step_s : float
        Predicted duration of an iteration in seconds.
    gradient_bytes : int
        Bytes of all gradients: what the AllReduces of an iteration sum to.
    interval : (float, float)
        Interval of ``step_s``.
    """

    step_s: float
    gradient_bytes: int
    interval: tuple[float, float]

    @property
    def is_usable(self) -> bool:
        """Whether all values are finite, positive and in order; a forecast may be none of it."""
        low, high = self.interval
        return 0 < low <= self.step_s <= high < math.inf and self.gradient_bytes > 0

    @property
    def margin_s(self) -> float:
        """Half of the width of the interval of an arrival."""
        low, high = self.interval
        return max(high - self.step_s, self.step_s - low)
