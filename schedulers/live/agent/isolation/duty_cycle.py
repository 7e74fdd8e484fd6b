"""A share of the time instead of a share of the processors: run for a while, stop for a while."""

from __future__ import annotations

import math
from typing import NamedTuple

from presage.schedulers.live.agent.tasks.task import FULL_DEVICE_MILLI

_PERIOD_S = 0.1
_SHORTEST_S = 0.002  # to run at a time: below it, stopping takes longer than running


class DutyCycle(NamedTuple):
    """Periods that begin with the part in which the task runs."""

    compute_milli: int
    since_s: float

    def runs(self, now_s: float) -> bool:
        """Whether the task is to run now."""
        return self._into(now_s) < self._on_s

    def next_s(self, now_s: float) -> float:
        """When that changes; never for a whole share."""
        if self.compute_milli >= FULL_DEVICE_MILLI:
            return math.inf
        into_s = self._into(now_s)
        return now_s + (self._on_s if into_s < self._on_s else self._period_s) - into_s

    @property
    def _period_s(self) -> float:
        return max(_PERIOD_S, _SHORTEST_S * FULL_DEVICE_MILLI / self.compute_milli)

    @property
    def _on_s(self) -> float:
        return self._period_s * self.compute_milli / FULL_DEVICE_MILLI

    def _into(self, now_s: float) -> float:
        return (now_s - self.since_s) % self._period_s
