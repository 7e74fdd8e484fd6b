"""Duty cycle: a share of the time instead of a share of the processors."""

from __future__ import annotations

import math
from typing import NamedTuple

from presage.schedulers.live.agent.tasks.task import FULL_DEVICE_MILLI

_PERIOD_S = 0.1
_MIN_ON_S = 0.002  # shorter runs take less time than stopping the processes


class DutyCycle(NamedTuple):
    """Cycle of periods, each of which begins with the part in which the task runs."""

    compute_milli: int
    since_s: float

    def runs(self, now_s: float) -> bool:
        """Return whether the task runs at a time."""
        return self._phase_s(now_s) < self._on_s

    def next_s(self, now_s: float) -> float:
        """Return when :meth:`runs` changes next; inf for a full share."""
        if self.compute_milli >= FULL_DEVICE_MILLI:
            return math.inf
        phase_s = self._phase_s(now_s)
        return now_s + (self._on_s if phase_s < self._on_s else self._period_s) - phase_s

    @property
    def _period_s(self) -> float:
        return max(_PERIOD_S, _MIN_ON_S * FULL_DEVICE_MILLI / self.compute_milli)

    @property
    def _on_s(self) -> float:
        return self._period_s * self.compute_milli / FULL_DEVICE_MILLI

    def _phase_s(self, now_s: float) -> float:
        return (now_s - self.since_s) % self._period_s
