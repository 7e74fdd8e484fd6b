"""Rows of the feature matrix by the C extension: the same numbers as by numpy."""

from __future__ import annotations

from types import ModuleType

import numpy as np

from presage.features.columns.job_values import OP_COUNT, OWN_BYTES
from presage.features.columns.placement_table import PlacementTable
from presage.features.columns.row_values import CONTEXT, MISFIT, OVERHEAD, PLACES, SUMS, row_rates
from presage.features.graph.operator_buckets import FIRST_BUCKET, HAS_RATIO_BUCKETS, RATIOS
from presage.features.graph.roofline import RATE_OF_CLASS
from presage.system.arrays import Array, Ints, Matrix

_OF_CLASS = np.array((RATE_OF_CLASS[0], FIRST_BUCKET, HAS_RATIO_BUCKETS, MISFIT), dtype=np.intp)


def write_rows(
    hot_path: ModuleType,
    out: Matrix,
    rows: PlacementTable,
    job_values: Matrix,
    columns: tuple[Ints, Ints, Array],
) -> None:
    """Write the feature matrix of shape (rows, columns) to ``out``.

    Parameters
    ----------
    hot_path : module
        The extension.
    job_values : ndarray of shape (jobs, quantities of ``JobValues``)
    columns : tuple of ndarray, each of shape (columns,)
        Positions of numerators and denominators among the values of jobs, devices and rows, and
        minima of denominators.
    """
    rates, share = row_rates(rows), np.ascontiguousarray(rows.share)
    sums, by_place = _sum_operators(hot_path, rows, rates * share[:, np.newaxis])
    hot_path.divide_columns(
        out, rows.job, rows.device, job_values, rows.devices.values, rates, share, sums, by_place,
        *columns, job_values.shape[1], rows.devices.values.shape[1], OP_COUNT,
        OWN_BYTES + job_values.shape[1], OVERHEAD, CONTEXT,
    )  # fmt: skip


def _sum_operators(
    hot_path: ModuleType, rows: PlacementTable, rates: Matrix
) -> tuple[Matrix, Matrix]:
    """Return as the function of this name in :mod:`presage.features.columns.row_values`."""
    jobs = rows.jobs
    counts = jobs.op_counts.take(rows.job)
    ends = counts.cumsum()
    sums = np.empty((len(SUMS), ends[-1] if len(ends) else 0))
    by_place = np.empty((len(rows), PLACES))
    hot_path.visit_operators(
        sums, by_place, rates, rows.job, jobs.op_starts, jobs.op_counts, jobs.op_classes,
        jobs.op_values, _OF_CLASS, RATIOS,
    )  # fmt: skip
    # numpy's logarithm and order of additions are its own.
    bound_s, ratio, log_ratio_s = sums[0], sums[1], sums[5]
    log_ratio_s *= np.log(ratio, out=ratio)
    ratio[:] = bound_s
    return np.add.reduceat(sums, ends - counts, axis=1), by_place
