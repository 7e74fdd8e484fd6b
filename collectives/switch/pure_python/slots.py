"""Memory of the pure-Python aggregator: chunks of the jobs that have a slot."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


class Slot:
    """Chunk buffers for one job: those of each rank, and their sums.

    Parameters
    ----------
    window : int
        Chunks that a rank may be ahead of its sums.
    values : int
        float32 values of a chunk.
    """

    def __init__(self, window: int, values: int) -> None:
        self._window, self._values = window, values
        self._inputs: NDArray[np.float32] = np.empty((0, window, values), np.float32)
        self._sums = np.empty((window, values), np.float32)
        self.is_free = True

    def reserve(self, ranks: int) -> None:
        """Take the slot for a job."""
        if len(self._inputs) < ranks:
            self._inputs = np.empty((ranks, self._window, self._values), np.float32)
        self.is_free = False

    def input(self, rank: int, index: int, size: int) -> memoryview:
        """Return the memory for a chunk of a rank, of ``size`` bytes."""
        return _bytes_of(self._inputs[rank, index % self._window])[:size]

    def sum(self, index: int, size: int) -> memoryview:
        """Return the memory of a sum."""
        return _bytes_of(self._sums[index % self._window])[:size]

    def add(self, ranks: int, index: int) -> None:
        """Sum a chunk of all ranks, in the order of ranks: ((r0 + r1) + r2) + ..."""
        place = index % self._window
        total = self._sums[place]
        np.copyto(total, self._inputs[0, place])
        with np.errstate(all="ignore"):  # ranks see infinities and NaN in the sum
            for rank in range(1, ranks):
                np.add(total, self._inputs[rank, place], out=total)


@dataclass
class AllReduce:
    """AllReduce of a job for which chunks of some ranks are missing.

    Attributes
    ----------
    values, chunks : int
        Size of the buffer in float32 values, and in chunks.
    summed : int
        Number of chunks whose sum is computed.
    """

    number: int
    epoch: int
    values: int
    chunks: int
    summed: int = 0


def _bytes_of(row: NDArray[np.float32]) -> memoryview:
    return memoryview(row.view(np.uint8).data)
