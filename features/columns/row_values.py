"""Feature quantities that depend on a job and its share of a device: times and prior memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from presage.features.columns.job_values import OP_COUNT, OWN_BYTES
from presage.features.columns.placement_table import PlacementTable, Visits
from presage.features.device.device_table import DEVICE_VALUES, RATES
from presage.features.graph.op_class import map_classes
from presage.features.graph.operator_buckets import OPERATOR_BUCKETS, bucket_positions
from presage.features.graph.roofline import op_seconds
from presage.features.graph.shape_class import MISFITS, PRODUCTS
from presage.system.arrays import Ints, Matrix

LEAST_S = 1e-9  # lower bound of an operator's time
LEAST_STEP_S = 1e-12

MISFIT_KINDS = tuple((kind, shape) for kind in PRODUCTS for shape in MISFITS)
MISFIT = map_classes(  # operators without a misfit come last
    lambda kind, _, shape: (
        len(OPERATOR_BUCKETS) + (*MISFIT_KINDS, (kind, shape)).index((kind, shape))
    )
)
PLACES = len(OPERATOR_BUCKETS) + len(MISFIT_KINDS) + 1

OVERHEAD, CONTEXT = map(DEVICE_VALUES.index, ("op_overhead_s", "context_bytes"))


def bucket_s(bucket: str) -> str:
    """Return the name of the quantity "seconds of a step in one of ``OPERATOR_BUCKETS``"."""
    return f"bucket_s.{bucket}"


def misfit_s(kind: str, shape: str) -> str:
    """Return the name of the quantity "seconds of a step in ill-shaped products of a kind"."""
    return f"misfit_s.{kind} {shape}"


SUMS = ("bound_s", "bound_s", "compute_s", "memory_s", "compute_bound_s", "log_ratio_s")
_SCALARS = ("overhead_s", "roofline_s", "roofline_s_and_least", "memory_prior_bytes")
ROW_VALUES = (
    *RATES,
    "share",
    *SUMS,
    *_SCALARS,
    *map(bucket_s, OPERATOR_BUCKETS),
    *(misfit_s(*each) for each in MISFIT_KINDS),
    "misfit_s.none",
)


def row_rates(rows: PlacementTable) -> Matrix:
    """Return ``RATES`` of each row's device at its job's precision, shape (rows, ``RATES``)."""
    rates: Matrix = rows.devices.rates[rows.device, rows.jobs.precisions.take(rows.job)]
    return rates


def row_values(rows: PlacementTable, by_job: Matrix, by_device: Matrix) -> tuple[Matrix, ...]:
    """Return the quantities ``ROW_VALUES`` as matrices (rows, quantities) to concatenate.

    Parameters
    ----------
    by_job : ndarray of shape (rows, quantities of ``JobValues``)
    by_device : ndarray of shape (rows, ``DEVICE_VALUES``)
    """
    share, visits = rows.share[:, None], rows.visits()
    rates = row_rates(rows)
    op_classes = rows.jobs.op_classes.take(visits.op)
    work = rows.jobs.op_values[:2].take(visits.op, axis=1)
    seconds = op_seconds(work, rates * share, visits.row, op_classes)
    sums, by_place = _sum_operators(visits, op_classes, seconds)
    overhead_s = by_job[:, OP_COUNT] * by_device[:, OVERHEAD]
    roofline_s = np.maximum(sums[0] + overhead_s, LEAST_STEP_S)
    memory_prior_bytes = by_device[:, CONTEXT] + by_job[:, OWN_BYTES]
    scalars = np.array((overhead_s, roofline_s, roofline_s + LEAST_STEP_S, memory_prior_bytes))
    return rates, share, sums.T, scalars.T, by_place


def _sum_operators(visits: Visits, op_classes: Ints, seconds: Matrix) -> tuple[Matrix, Matrix]:
    """Return ``SUMS`` over each row's operators, and their seconds by bucket and misfit.

    ``seconds`` are the compute and memory times of operators, shape (2, visits).
    """
    compute_s, memory_s = seconds
    bound_s = np.maximum(compute_s, memory_s)
    more_compute, more_memory = seconds + LEAST_S
    ratio = more_compute / more_memory
    compute_bound_s = compute_s * (compute_s > memory_s)
    log_ratio_s = bound_s * np.log(ratio)
    sums = np.array((bound_s, bound_s, compute_s, memory_s, compute_bound_s, log_ratio_s))
    # Each operator counts twice: in its bucket, and by its misfit among operators of its kind.
    places = np.array((bucket_positions(op_classes, ratio), MISFIT.take(op_classes)))
    places += PLACES * visits.row
    rows = len(visits.starts)
    by_place: Any = np.bincount(places.ravel(), sums[:2].ravel(), rows * PLACES)
    return np.add.reduceat(sums, visits.starts, axis=1), by_place.reshape(rows, PLACES)
