"""Table of node-days: whether a node that is up at the start of a day fails within it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from presage.errors import TrainingError
from presage.features.hazard.hazard_model import DAY_S
from presage.features.hazard.outage import Outage
from presage.features.hazard.outage_features import decayed
from presage.system.arrays import Array, Ints, Mask, Matrix


@dataclass(frozen=True, slots=True)
class UnitDays:
    """Rows of units that are up at the start of a day, in order of day and unit.

    Attributes
    ----------
    unit, day : ndarray of shape (rows,)
    fails : ndarray of bool, of shape (rows,)
        Whether the unit fails within the day.
    next_failure_days : ndarray of shape (rows,)
        Time to the next failure; infinite if there is none in the data.
    repairs : tuple of ndarray
        Ages in days of the past repairs of each row.
    """

    unit: Ints
    day: Ints
    fails: Mask
    next_failure_days: Array
    repairs: tuple[Array, ...]

    def __len__(self) -> int:
        return len(self.unit)

    def rows(self, chosen: Mask | Ints) -> UnitDays:
        """Return some of the rows."""
        positions = np.arange(len(self))[chosen]
        return UnitDays(
            self.unit[positions],
            self.day[positions],
            self.fails[positions],
            self.next_failure_days[positions],
            tuple(self.repairs[i] for i in positions.tolist()),
        )

    def decayed_repairs(self, half_lives_days: Sequence[float]) -> Matrix:
        """Return the decayed counts of repairs, of shape (rows, half-lives)."""
        counts = np.zeros((len(self), len(half_lives_days)))
        for row, ages_days in enumerate(self.repairs):
            if len(ages_days):
                counts[row] = decayed(ages_days, half_lives_days)
        return counts


def make_unit_days(
    outages: Sequence[Outage], units: int, *, from_day: int, until_day: int
) -> UnitDays:
    """Return the rows of days in [``from_day``, ``until_day``), with all history before them.

    Raises
    ------
    TrainingError
        There is no day, or an outage is of an unknown unit.
    """
    if not 0 <= from_day < until_day:
        raise TrainingError(f"no days from {from_day} to {until_day}; give a longer fault history")
    spans: list[list[tuple[float, float]]] = [[] for _ in range(units)]
    for outage in outages:
        if not 0 <= outage.node < units:
            raise TrainingError(f"an outage of unit {outage.node}, and there are {units}")
        spans[outage.node].append((outage.from_s / DAY_S, outage.until_s / DAY_S))
    days = np.arange(from_day, until_day)
    columns: list[tuple[int, int, float, Array]] = []
    for unit, found in enumerate(spans):
        starts = np.sort([start for start, _ in found])
        ends = np.sort([end for _, end in found])
        down = np.zeros(len(days), bool)
        for start, end in found:
            down |= (start <= days) & (days < end)
        for day in days[~down].tolist():
            coming = starts[starts > day]
            wait = float(coming[0] - day) if len(coming) else np.inf
            columns.append((unit, day, wait, day - ends[ends <= day]))
    columns.sort(key=lambda row: (row[1], row[0]))
    wait_days = np.array([row[2] for row in columns])
    return UnitDays(
        np.array([row[0] for row in columns], np.intp),
        np.array([row[1] for row in columns], np.intp),
        wait_days <= 1.0,
        wait_days,
        tuple(row[3] for row in columns),
    )
