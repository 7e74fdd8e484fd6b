"""Computation of all columns of the feature matrix at once.

A :class:`FeatureColumn` names its quantities; a plan knows their positions among the values that
are computed once per job, once per device and once per row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from presage.features.columns.column import FeatureColumn
from presage.features.columns.compiled_rows import write_rows
from presage.features.columns.job_values import JobValues
from presage.features.columns.placement_table import PlacementTable
from presage.features.columns.row_values import ROW_VALUES, row_values
from presage.features.device.device_table import DEVICE_VALUES
from presage.native import compiled
from presage.system.arrays import Matrix

# Limit on operators per chunk of rows, counted once for every row: a dozen numbers for each fit in
# a processor's cache, and a million of them take no more memory than this many.
MAX_VISITS = 1 << 13


class ColumnPlan:
    """Vectorized computation of the columns of a feature set."""

    def __init__(self, columns: Sequence[FeatureColumn]) -> None:
        self._columns = len(columns)
        numerators = [c.numerator or c.name for c in columns]
        denominators = [c.denominator for c in columns]
        self._jobs = JobValues((*numerators, *denominators))
        places = {
            quantity: place
            for place, quantity in enumerate((*self._jobs.quantities, *DEVICE_VALUES, *ROW_VALUES))
        }
        self._numerators = np.array([places[quantity] for quantity in numerators])
        self._denominators = np.array([places[quantity] for quantity in denominators])
        self._min_denominators = np.array([c.min_denominator for c in columns])

    @np.errstate(all="ignore")
    def matrix(self, rows: PlacementTable) -> Matrix:
        """Return the feature matrix, shape (rows, columns).

        A value that cannot be computed (a share of zero, a sum beyond float64) is nan or inf.
        """
        out = np.empty((len(rows), self._columns))
        job_values = self._jobs.compute(rows.jobs)
        if len(rows) * len(rows.jobs.op_classes) <= MAX_VISITS:
            self._write(out, rows, job_values)
        else:
            for chunk in _chunks(rows):
                self._write(out[chunk], rows.rows(chunk), job_values)
        return out

    def _write(self, out: Matrix, rows: PlacementTable, job_values: Matrix) -> None:
        if compiled.hot_path is not None:
            columns = self._numerators, self._denominators, self._min_denominators
            write_rows(compiled.hot_path, out, rows, job_values, columns)
            return
        by_job = job_values.take(rows.job, axis=0)
        by_device = rows.devices.values.take(rows.device, axis=0)
        values = np.concatenate((by_job, by_device, *row_values(rows, by_job, by_device)), axis=1)
        denominators = np.maximum(values.take(self._denominators, axis=1), self._min_denominators)
        np.divide(values.take(self._numerators, axis=1), denominators, out=out)


def _chunks(rows: PlacementTable) -> Iterator[slice]:
    """Yield slices of consecutive rows: at most ``MAX_VISITS`` operators, or a single row."""
    ends = rows.jobs.op_counts.take(rows.job).cumsum()
    start, visited = 0, 0
    while start < len(rows):
        stop = max(start + 1, int(ends.searchsorted(visited + MAX_VISITS, "right")))
        yield slice(start, stop)
        start, visited = stop, int(ends[stop - 1])
