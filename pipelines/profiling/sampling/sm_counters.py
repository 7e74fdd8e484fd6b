"""Counters of multiprocessor activity, which is finer than "a kernel was running"."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class SmReading:
    """Means of a window; None where the counter has no value."""

    activity: float | None = None
    occupancy: float | None = None


class SmCounters(Protocol):
    """Counts from ``start`` to ``stop``."""

    def start(self) -> None:
        """Start a window."""

    def stop(self) -> SmReading:
        """End the window and return the means."""


class FallbackCounters:
    """Several counters at once; the first with a value is used."""

    def __init__(self, counters: Sequence[SmCounters]) -> None:
        self._counters = tuple(counters)

    def start(self) -> None:  # noqa: D102 - as in SmCounters
        for counter in self._counters:
            counter.start()

    def stop(self) -> SmReading:  # noqa: D102
        readings = [counter.stop() for counter in self._counters]  # stop all counters
        known = (reading for reading in readings if reading.activity is not None)
        return next(known, SmReading())
