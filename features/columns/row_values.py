"""What columns take from a job on a share of a device: times, and the sum over memory's holders."""

from __future__ import annotations

from typing import Any

import numpy as np

from presage.features.columns.job_values import OP_COUNT, OWN_BYTES
from presage.features.columns.placement_table import PlacementTable, Visits
from presage.features.device.device_table import DEVICE_VALUES, RATES
from presage.features.graph.op_class import by_class
from presage.features.graph.operator_buckets import CELLS, cells_of
from presage.features.graph.roofline import op_seconds
from presage.features.graph.shape_class import MISFITS, PRODUCTS
from presage.system.arrays import Ints, Matrix

LEAST_S = 1e-9  # of an operator
LEAST_STEP_S = 1e-12

MISFIT_KINDS = tuple((kind, shape) for kind in PRODUCTS for shape in MISFITS)
_MISFIT = by_class(  # what is none comes last
    lambda kind, _, shape: len(CELLS) + (*MISFIT_KINDS, (kind, shape)).index((kind, shape))
)
_PLACES = len(CELLS) + len(MISFIT_KINDS) + 1

_OVERHEAD, _CONTEXT = map(DEVICE_VALUES.index, ("op_overhead_s", "context_bytes"))


def cell_s(cell: str) -> str:
    """Name of the quantity: seconds of a step in one of ``CELLS``."""
    return f"cell_s.{cell}"


def misfit_s(kind: str, shape: str) -> str:
    """Name of the quantity: seconds of a step in products of a kind that are ill shaped."""
    return f"misfit_s.{kind} {shape}"


_SUMS = ("bound_s", "bound_s", "compute_s", "memory_s", "compute_bound_s", "log_ratio_s")
_SCALARS = ("overhead_s", "roofline_s", "roofline_s_and_least", "memory_prior_bytes")
ROW_VALUES = (
    *RATES,
    "share",
    *_SUMS,
    *_SCALARS,
    *map(cell_s, CELLS),
    *(misfit_s(*each) for each in MISFIT_KINDS),
    "misfit_s.none",
)


def row_values(rows: PlacementTable, of_job: Matrix, of_device: Matrix) -> tuple[Matrix, ...]:
    """Quantities ``ROW_VALUES``, matrices of shape (rows, quantities) to be put side by side.

    Parameters
    ----------
    of_job : ndarray of shape (rows, quantities of ``JobValues``)
    of_device : ndarray of shape (rows, ``DEVICE_VALUES``)
    """
    share, visits = rows.share[:, None], rows.visits()
    rates = rows.devices.rates[rows.device, rows.jobs.precisions.take(rows.job)]
    op_classes = rows.jobs.op_classes.take(visits.op)
    work = rows.jobs.op_values[:2].take(visits.op, axis=1)
    seconds = op_seconds(work, rates * share, visits.row, op_classes)
    sums, by_place = _summed(visits, op_classes, seconds)
    overhead_s = of_job[:, OP_COUNT] * of_device[:, _OVERHEAD]
    roofline_s = np.maximum(sums[0] + overhead_s, LEAST_STEP_S)
    memory_prior_bytes = of_device[:, _CONTEXT] + of_job[:, OWN_BYTES]
    scalars = np.array((overhead_s, roofline_s, roofline_s + LEAST_STEP_S, memory_prior_bytes))
    return rates, share, sums.T, scalars.T, by_place


def _summed(visits: Visits, op_classes: Ints, seconds: Matrix) -> tuple[Matrix, Matrix]:
    """Seconds of each row's operators (2, visits): ``_SUMS`` (sums, rows), by cell and misfit."""
    compute_s, memory_s = seconds
    bound_s = np.maximum(compute_s, memory_s)
    more_compute, more_memory = seconds + LEAST_S
    ratio = more_compute / more_memory
    compute_bound_s = compute_s * (compute_s > memory_s)
    log_ratio_s = bound_s * np.log(ratio)
    summed = np.array((bound_s, bound_s, compute_s, memory_s, compute_bound_s, log_ratio_s))
    # Each operator counts twice: in its cell, and among the well or ill shaped of its kind.
    places = np.array((cells_of(op_classes, ratio), _MISFIT.take(op_classes)))
    places += _PLACES * visits.row
    rows = len(visits.starts)
    by_place: Any = np.bincount(places.ravel(), summed[:2].ravel(), rows * _PLACES)
    return np.add.reduceat(summed, visits.starts, axis=1), by_place.reshape(rows, _PLACES)
