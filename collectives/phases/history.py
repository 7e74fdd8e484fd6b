"""Recorded AllReduces of a job: consecutive numbers with times that never decrease."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class History:
    """AllReduces with consecutive numbers.

    Attributes
    ----------
    numbers, sizes : array of int64, shape (records,)
        Number and bytes of each.
    starts_s : array of float64, shape (records,)
        Start of each, never decreasing.
    on_switch : array of bool, shape (records,)
        Whether the switch was to aggregate it.
    """

    numbers: NDArray[np.int64]
    starts_s: NDArray[np.float64]
    sizes: NDArray[np.int64]
    on_switch: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.numbers)

    def last(self, count: int) -> History:
        """Return the newest ``count`` AllReduces, or all."""
        begin = max(0, len(self) - count)
        return History(
            self.numbers[begin:],
            self.starts_s[begin:],
            self.sizes[begin:],
            self.on_switch[begin:],
        )

    def repeating(self, calls: int) -> History:
        """Return the newest AllReduces whose sizes repeat after ``calls`` of them."""
        differs = np.flatnonzero(self.sizes[calls:] != self.sizes[:-calls])
        return self.last(len(self) - int(differs[-1]) - 1) if len(differs) else self


def read_history(records: Iterable[tuple[int, float, int, bool]]) -> History:
    """Return the records since the last missing number and the last jump of the clock."""
    rows = list(records)  # one step of the interpreter: another thread may append meanwhile
    numbers = np.array([row[0] for row in rows], dtype=np.int64)
    starts_s = np.array([row[1] for row in rows], dtype=np.float64)
    sizes = np.array([row[2] for row in rows], dtype=np.int64)
    on_switch = np.array([row[3] for row in rows], dtype=bool)
    history = History(numbers, starts_s, sizes, on_switch)
    finite = np.isfinite(starts_s)
    if rows and not finite[-1]:
        return history.last(0)
    with np.errstate(invalid="ignore"):
        is_next = (np.diff(numbers) == 1) & (np.diff(starts_s) >= 0) & finite[:-1] & finite[1:]
    breaks = np.flatnonzero(~is_next)
    return history.last(len(rows) - int(breaks[-1]) - 1) if len(breaks) else history
