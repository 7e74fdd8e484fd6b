"""Distances between devices of a topology, in constant time."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from presage.schedulers.core.topology import Topology


class Distances:
    """Costs of communication between devices in depth-first order (msc of requirement C1).

    Costs do not fall towards the root, so the cost between two devices is the largest cost between
    adjacent devices in the range from one to the other. A sparse table answers such range maximum
    queries in constant time (Bender and Farach-Colton, LATIN 2000).

    Parameters
    ----------
    devices : ndarray of int of shape (candidates,)
        Devices in depth-first order (:meth:`Topology.depth_first`).

    Attributes
    ----------
    devices : int
        Number of devices.
    most : float
        Cost of the most expensive level of the topology; 1 if all levels are free.
    """

    def __init__(self, topology: Topology, devices: NDArray[np.int64]) -> None:
        self.devices = len(devices)
        self.most = max(topology.costs[level] for level in topology.levels) or 1.0
        self._gaps = gaps = topology.distance(devices[:-1], devices[1:])
        self._table = np.zeros((max(1, len(devices).bit_length()), len(devices)))
        self._table[0, : len(gaps)] = gaps
        for power in range(1, len(self._table)):
            half, before = 1 << (power - 1), self._table[power - 1]
            self._table[power] = before
            self._table[power, :-half] = np.maximum(before[:-half], before[half:])

    def widest(self, first: int, end: int) -> float:
        """Return the largest distance within a range of places; 0 for a single place."""
        return float(self._gaps[first : end - 1].max(initial=0.0))

    def parts(self, first: int, end: int) -> list[tuple[int, int]]:
        """Return the range of places below each child of the vertex that joins a range.

        Each range is its first place and the place after its last one.
        """
        gaps = self._gaps[first : end - 1]
        ends = np.flatnonzero(gaps == gaps.max(initial=0.0)) + first + 1
        return list(pairwise([first, *ends.tolist(), end]))

    def __call__(self, a: NDArray[np.int64], b: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return distances of places, of shapes that broadcast; 0 from a place to itself."""
        first, last = np.minimum(a, b), np.maximum(a, b)
        # Of an interval of n gaps, two of the largest power of two <= n cover it.
        power = np.frexp(np.maximum(last - first, 1))[1] - 1
        found = np.maximum(
            self._table[power, first], self._table[power, np.maximum(last - (1 << power), first)]
        )
        return np.where(first == last, 0.0, found)
