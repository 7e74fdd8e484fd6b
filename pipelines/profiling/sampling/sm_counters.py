"""How busy the multiprocessors themselves are, beyond "a kernel was running"."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class SmReading:
    """Means of a window; None where the counter does not say."""

    activity: float | None = None
    occupancy: float | None = None


class SmCounters(Protocol):
    """Counts from ``start`` to ``stop``."""

    def start(self) -> None:
        """Begin a window."""

    def stop(self) -> SmReading:
        """End the window."""


class FirstThatCounts:
    """Several counters at once; the first that says anything is believed."""

    def __init__(self, counters: Sequence[SmCounters]) -> None:
        self._counters = tuple(counters)

    def start(self) -> None:  # noqa: D102 - as in SmCounters
        for counter in self._counters:
            counter.start()

    def stop(self) -> SmReading:  # noqa: D102
        readings = [counter.stop() for counter in self._counters]  # all of them: none may linger
        told = (reading for reading in readings if reading.activity is not None)
        return next(told, SmReading())
