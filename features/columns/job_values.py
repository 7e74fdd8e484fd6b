"""What columns take from jobs alone: computed once for each, on however many devices it is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np

from presage.features.columns.column import OpMax, OpSum, Quantity
from presage.features.graph.op_class import OP_CLASSES
from presage.features.job.job_table import JOB_SCALARS, OP_VALUES, JobTable
from presage.features.job.kernel_memory import BYTES_OF_INPUT, KERNELS, LARGEST_INPUTS, kernel_bytes
from presage.system.arrays import Matrix

# Places of what times and memory of a row are computed from, the first and the last.
OP_COUNT, OWN_BYTES = 0, -1
_LIVE_BYTES = JOB_SCALARS.index("peak_live_bytes")


class JobValues:
    """Computes quantities that depend on jobs alone.

    Attributes
    ----------
    quantities : tuple of str or Quantity
        Those of the given ones that do, and some more. At ``OP_COUNT`` is the number of operators,
        at ``OWN_BYTES`` what tensors and kernels take together.
    """

    def __init__(self, quantities: Iterable[Quantity]) -> None:
        wanted = dict.fromkeys((OpSum("count"), *LARGEST_INPUTS, *quantities))
        sums = [q for q in wanted if isinstance(q, OpSum)]
        largest = [q for q in wanted if isinstance(q, OpMax)]
        kernels = [kernel_bytes(*kernel) for kernel in KERNELS]
        self.quantities: tuple[Quantity, ...]
        self.quantities = (*sums, *largest, "nowhere", *kernels, *JOB_SCALARS, "own_bytes")
        self._kernel_inputs = slice(len(sums), len(sums) + len(kernels))
        self._width = len(sums) + len(largest) + 1
        nowhere = self._width - 1
        summed, taken = _lanes(sums, 0, nowhere), _lanes(largest, len(sums), nowhere)
        self._summed = len(summed)
        self._values = np.array([value for value, _ in (*summed, *taken)])
        self._places = np.array([places for _, places in (*summed, *taken)])

    def of(self, jobs: JobTable) -> Matrix:
        """Matrix (jobs, ``quantities``), computed once for a table."""
        if self not in jobs.computed:
            jobs.computed[self] = self._compute(jobs)
            jobs.computed[self].setflags(write=False)
        return jobs.computed[self]

    def _compute(self, jobs: JobTable) -> Matrix:
        by_op = self._of_operators(jobs)
        taken = BYTES_OF_INPUT.take(jobs.precisions)
        kernels = by_op[:, self._kernel_inputs] * taken[:, None]
        own_bytes = jobs.scalars[:, _LIVE_BYTES] + np.add.reduce(kernels, axis=1)
        return np.concatenate((by_op, kernels, jobs.scalars, own_bytes[:, None]), axis=1)

    def _of_operators(self, jobs: JobTable) -> Matrix:
        """Sums and largest values of jobs' operators, shape (jobs, sums and largest)."""
        places = self._places.take(jobs.op_classes, axis=1) + self._width * jobs.op_jobs()
        values = jobs.op_values.take(self._values, axis=0)  # (lanes, ops)
        n, size = self._summed, len(jobs) * self._width
        out: Any = np.bincount(places[:n].ravel(), values[:n].ravel(), size)
        np.maximum.at(out, places[n:].ravel(), values[n:].ravel())
        by_job: Matrix = out.reshape(len(jobs), self._width)
        return by_job


def _lanes(
    quantities: Sequence[OpSum | OpMax], first: int, nowhere: int
) -> list[tuple[int, tuple[int, ...]]]:
    """Where operators count: each at one place, or ``nowhere``, on every lane.

    A lane is the position of a value in ``OP_VALUES``, and by class of operators the place of the
    quantity that it counts in; the quantities' places begin with ``first``.
    """
    lanes = []
    for value, of in enumerate(OP_VALUES):
        counted = [
            [
                place
                for place, q in enumerate(quantities, first)
                if q.of == of and kind in q.kinds and phase in q.phases
            ]
            for kind, phase, _ in OP_CLASSES
        ]
        lanes += [(value, places) for places in zip_longest(*counted, fillvalue=nowhere)]
    return lanes
