"""What is left of every device: shares of its compute, and memory."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from presage.schedulers.core.allocation import FULL_DEVICE_MILLI, Allocation
from presage.schedulers.core.cluster import Cluster


class FreeCapacity:
    """Compute and memory that nobody holds; a policy takes from a copy of its own.

    Attributes
    ----------
    compute_milli : ndarray of shape (devices,)
        Thousandths of each device that are left; none of a device that is down.
    memory_bytes : ndarray of shape (devices,)
        Bytes of each device that are left.
    """

    __slots__ = ("compute_milli", "memory_bytes")

    def __init__(self, compute_milli: NDArray[np.int64], memory_bytes: NDArray[np.int64]) -> None:
        self.compute_milli, self.memory_bytes = compute_milli, memory_bytes

    @classmethod
    def of(cls, cluster: Cluster) -> FreeCapacity:
        """Of a cluster where nothing runs."""
        memory = [allocation.memory_bytes for allocation in cluster.whole]
        return cls(
            np.full(cluster.devices, FULL_DEVICE_MILLI, np.int64), np.array(memory, np.int64)
        )

    def copy(self) -> FreeCapacity:
        """Another one, to take from."""
        return FreeCapacity(self.compute_milli.copy(), self.memory_bytes.copy())

    def take(self, allocations: Iterable[Allocation]) -> None:
        """Take grants, which fit."""
        for device, compute, memory in allocations:
            self.compute_milli[device] -= compute
            self.memory_bytes[device] -= memory

    def give(self, allocations: Iterable[Allocation]) -> None:
        """Give grants back that were taken."""
        for device, compute, memory in allocations:
            self.compute_milli[device] += compute
            self.memory_bytes[device] += memory
