"""A mean of what lately was: not swayed by a moment, and free of what is long past."""

from __future__ import annotations

import math
from collections import deque


class WindowedMean:
    """Mean over the last so many seconds of a quantity that is measured from time to time.

    Each value is that of the time since the one before, as a share of processors is; the first has
    no such time and only says when measuring began.

    Raises
    ------
    ValueError
        The window has no length.
    """

    def __init__(self, window_s: float) -> None:
        if not (math.isfinite(window_s) and window_s > 0):
            raise ValueError(f"window_s={window_s}, must be a finite number > 0")
        self._window_s = window_s
        self._last_s: float | None = None
        self._parts: deque[tuple[float, float, float]] = deque()  # from, to, value

    def add(self, at_s: float, value: float | None) -> None:
        """What it was from the time before until ``at_s``; None where nobody can tell."""
        if self._last_s is not None and at_s > self._last_s and value is not None:
            self._parts.append((self._last_s, at_s, value))
        self._last_s = at_s if self._last_s is None else max(at_s, self._last_s)
        while self._parts and self._parts[0][1] <= self._last_s - self._window_s:
            self._parts.popleft()

    def mean(self) -> float | None:
        """Over the window up to the last time; of what is known of it, None if that is nothing."""
        if self._last_s is None or not self._parts:
            return None
        begin_s = self._last_s - self._window_s
        lengths = [to_s - max(begin_s, from_s) for from_s, to_s, _ in self._parts]
        values = [value for _, _, value in self._parts]
        known_s = math.fsum(lengths)
        weighted = math.fsum(length * value for length, value in zip(lengths, values, strict=True))
        return min(max(values), max(min(values), weighted / known_s))

    def covered_s(self) -> float:
        """How much of the window is known: a mean over little of it says little."""
        if self._last_s is None:
            return 0.0
        begin_s = self._last_s - self._window_s
        return math.fsum(to_s - max(begin_s, from_s) for from_s, to_s, _ in self._parts)
