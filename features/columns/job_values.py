"""Feature quantities that depend only on the job, computed once per job for all devices."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np

from presage.features.columns.column import OpMax, OpSum, Quantity
from presage.features.graph.op_class import OP_CLASSES
from presage.features.job.job_table import JOB_SCALARS, OP_VALUES, JobTable
from presage.features.job.kernel_memory import BYTES_OF_INPUT, KERNELS, LARGEST_INPUTS, kernel_bytes
from presage.native import compiled
from presage.system.arrays import Matrix

# Positions of the inputs of a row's times and memory: the first and the last quantity.
OP_COUNT, OWN_BYTES = 0, -1
_LIVE_BYTES = JOB_SCALARS.index("peak_live_bytes")


class JobValues:
    """Computation of the quantities that depend only on jobs.

    Attributes
    ----------
    quantities : tuple of str or Quantity
        The requested quantities that depend only on jobs, and internal ones. At ``OP_COUNT`` is
        the number of operators, at ``OWN_BYTES`` the bytes of tensors and kernels together.
    """

    def __init__(self, quantities: Iterable[Quantity]) -> None:
        requested = dict.fromkeys((OpSum("count"), *LARGEST_INPUTS, *quantities))
        sums = [q for q in requested if isinstance(q, OpSum)]
        largest = [q for q in requested if isinstance(q, OpMax)]
        kernels = [kernel_bytes(*kernel) for kernel in KERNELS]
        self.quantities: tuple[Quantity, ...]
        self.quantities = (*sums, *largest, "nowhere", *kernels, *JOB_SCALARS, "own_bytes")
        self._kernel_inputs = slice(len(sums), len(sums) + len(kernels))
        self._width = len(sums) + len(largest) + 1
        nowhere = self._width - 1
        sum_lanes, max_lanes = _lanes(sums, 0, nowhere), _lanes(largest, len(sums), nowhere)
        self._sum_lanes = len(sum_lanes)
        self._values = np.array([value for value, _ in (*sum_lanes, *max_lanes)])
        self._places = np.array([places for _, places in (*sum_lanes, *max_lanes)])

    def compute(self, jobs: JobTable) -> Matrix:
        """Return the matrix (jobs, ``quantities``); it is computed once per table."""
        if self not in jobs.computed:
            jobs.computed[self] = self._compute(jobs)
            jobs.computed[self].setflags(write=False)
        return jobs.computed[self]

    def _compute(self, jobs: JobTable) -> Matrix:
        by_op = self._reduce_operators(jobs)
        bytes_per_input = BYTES_OF_INPUT.take(jobs.precisions)
        kernels = by_op[:, self._kernel_inputs] * bytes_per_input[:, None]
        own_bytes = jobs.scalars[:, _LIVE_BYTES] + np.add.reduce(kernels, axis=1)
        return np.concatenate((by_op, kernels, jobs.scalars, own_bytes[:, None]), axis=1)

    def _reduce_operators(self, jobs: JobTable) -> Matrix:
        """Return sums and maxima over each job's operators, shape (jobs, sums and maxima)."""
        by_job: Matrix
        if (hot_path := compiled.hot_path) is not None:
            by_job = np.empty((len(jobs), self._width))
            hot_path.sum_operators(
                by_job, jobs.op_counts, jobs.op_classes, jobs.op_values, self._values,
                self._places, self._sum_lanes,
            )  # fmt: skip
            return by_job
        places = self._places.take(jobs.op_classes, axis=1) + self._width * jobs.op_jobs()
        values = jobs.op_values.take(self._values, axis=0)  # (lanes, ops)
        n, size = self._sum_lanes, len(jobs) * self._width
        out: Any = np.bincount(places[:n].ravel(), values[:n].ravel(), size)
        np.maximum.at(out, places[n:].ravel(), values[n:].ravel())
        by_job = out.reshape(len(jobs), self._width)
        return by_job


def _lanes(
    quantities: Sequence[OpSum | OpMax], first: int, nowhere: int
) -> list[tuple[int, tuple[int, ...]]]:
    """Return, for every lane, the place at which operators of each class are counted.

    A lane is the position of a value in ``OP_VALUES`` and, for each operator class, the place of
    the quantity that the class contributes to, or ``nowhere``. The places of ``quantities`` begin
    with ``first``.
    """
    lanes = []
    for position, value in enumerate(OP_VALUES):
        counted = [
            [
                place
                for place, q in enumerate(quantities, first)
                if q.value == value and kind in q.kinds and phase in q.phases
            ]
            for kind, phase, _ in OP_CLASSES
        ]
        lanes += [(position, places) for places in zip_longest(*counted, fillvalue=nowhere)]
    return lanes
