"""Prior of the phases of a job: what is predicted before its iterations have repeated."""

from __future__ import annotations

import math
from dataclasses import dataclass

DEFAULT_MARGIN = 0.25  # of the step time, without an interval


@dataclass(frozen=True, slots=True)
class Prior:
    """Forecast of a job's step time, for its first iterations.

    Attributes
    ----------
    step_time_s : float
        Predicted duration of an iteration in seconds.
    gradient_bytes : int
        Bytes of all gradients: what the AllReduces of an iteration sum to.
    step_time_interval_s : (float, float) or None
        Interval of ``step_time_s``; None for a quarter to each side.

    Raises
    ------
    ValueError
        A value is 0, negative or not finite, or the step time is outside its interval. The message
        begins with the name of the attribute.
    """

    step_time_s: float
    gradient_bytes: int
    step_time_interval_s: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if not 0 < self.step_time_s < math.inf:
            raise ValueError(
                f"step_time_s={self.step_time_s:g}, must be a finite number of seconds above 0; "
                "give the predicted step time, or no forecast"
            )
        if self.gradient_bytes < 1:
            raise ValueError(
                f"gradient_bytes={self.gradient_bytes}, must be at least 1; give the bytes of all "
                "gradients, 4 times the number of trainable parameters"
            )
        if self.step_time_interval_s is None:
            return
        low, high = self.step_time_interval_s
        if not 0 < low <= self.step_time_s <= high < math.inf:
            raise ValueError(
                f"step_time_interval_s={low:g},{high:g}, must be finite, above 0 and contain the "
                f"step time {self.step_time_s:g}; give LOW,HIGH in seconds"
            )

    @property
    def margin_s(self) -> float:
        """Half of the width of the interval of an arrival."""
        if self.step_time_interval_s is None:
            return DEFAULT_MARGIN * self.step_time_s
        low, high = self.step_time_interval_s
        return max(high - self.step_time_s, self.step_time_s - low)

    @property
    def can_predict(self) -> bool:
        """Whether the interval of an arrival is narrower than an iteration."""
        return 2 * self.margin_s < self.step_time_s
