"""The feature matrix, computed for all columns at once.

A column says what it is of (:class:`FeatureColumn`); a plan knows where that stands among what is
computed once per job, once per device and once per row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from presage.features.columns.column import FeatureColumn
from presage.features.columns.job_values import JobValues
from presage.features.columns.placement_table import PlacementTable
from presage.features.columns.row_values import ROW_VALUES, row_values
from presage.features.device.device_table import DEVICE_VALUES
from presage.system.arrays import Matrix

# Operators of a part of the rows, each counted on every row: a dozen numbers of each fit in a
# processor's cache, and a million of them take no more memory than this many do.
MAX_VISITS = 1 << 13


class ColumnPlan:
    """How the columns of a feature set are computed."""

    def __init__(self, columns: Sequence[FeatureColumn]) -> None:
        self._columns = len(columns)
        of, over = [c.of or c.name for c in columns], [c.over for c in columns]
        self._jobs = JobValues((*of, *over))
        places = {
            quantity: place
            for place, quantity in enumerate((*self._jobs.quantities, *DEVICE_VALUES, *ROW_VALUES))
        }
        self._of = np.array([places[quantity] for quantity in of])
        self._over = np.array([places[quantity] for quantity in over])
        self._least_over = np.array([c.least_over for c in columns])

    @np.errstate(all="ignore")
    def matrix(self, rows: PlacementTable) -> Matrix:
        """Feature matrix of shape (rows, columns).

        What cannot be computed, a share of nothing or a sum beyond float64, is nan or inf.
        """
        out = np.empty((len(rows), self._columns))
        of_jobs = self._jobs.of(rows.jobs)
        if len(rows) * len(rows.jobs.op_classes) <= MAX_VISITS:
            self._write(out, rows, of_jobs)
        else:
            for part in _parts(rows):
                self._write(out[part], rows.rows(part), of_jobs)
        return out

    def _write(self, out: Matrix, rows: PlacementTable, of_jobs: Matrix) -> None:
        of_job = of_jobs.take(rows.job, axis=0)
        of_device = rows.devices.values.take(rows.device, axis=0)
        of_row = row_values(rows, of_job, of_device)
        values = np.concatenate((of_job, of_device, *of_row), axis=1)
        over = np.maximum(values.take(self._over, axis=1), self._least_over)
        np.divide(values.take(self._of, axis=1), over, out=out)


def _parts(rows: PlacementTable) -> Iterator[slice]:
    """Rows that follow one another, of ``MAX_VISITS`` operators together or one alone."""
    ends = rows.jobs.op_counts.take(rows.job).cumsum()
    start, visited = 0, 0
    while start < len(rows):
        stop = max(start + 1, int(ends.searchsorted(visited + MAX_VISITS, "right")))
        yield slice(start, stop)
        start, visited = stop, int(ends[stop - 1])
