"""Free compute and memory of every device."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from presage.schedulers.core.allocation import FULL_DEVICE_MILLI, Allocation
from presage.schedulers.core.cluster import Cluster


class FreeCapacity:
    """Free compute and memory of every device; a policy allocates from its own copy.

    Attributes
    ----------
    compute_milli : ndarray of shape (devices,)
        Free compute, in thousandths of each device; 0 for a device that is down.
    memory_bytes : ndarray of shape (devices,)
        Free memory of each device, in bytes; 0 for a device that is down.
    """

    __slots__ = ("compute_milli", "memory_bytes")

    def __init__(self, compute_milli: NDArray[np.int64], memory_bytes: NDArray[np.int64]) -> None:
        self.compute_milli, self.memory_bytes = compute_milli, memory_bytes

    @classmethod
    def full(cls, cluster: Cluster) -> FreeCapacity:
        """Return the capacity of a cluster without jobs."""
        memory = [allocation.memory_bytes for allocation in cluster.full_allocations]
        return cls(
            np.full(cluster.devices, FULL_DEVICE_MILLI, np.int64), np.array(memory, np.int64)
        )

    @classmethod
    def none(cls, cluster: Cluster) -> FreeCapacity:
        """Return no capacity of any device."""
        return cls(np.zeros(cluster.devices, np.int64), np.zeros(cluster.devices, np.int64))

    def extend(self, cluster: Cluster, *, is_free: bool = True) -> None:
        """Add the devices that ``cluster`` has after these, with all of their capacity or none."""
        whole = cluster.full_allocations[len(self.compute_milli) :]
        compute = np.array([one.compute_milli for one in whole], np.int64) * is_free
        memory = np.array([one.memory_bytes for one in whole], np.int64) * is_free
        self.compute_milli = np.concatenate((self.compute_milli, compute))
        self.memory_bytes = np.concatenate((self.memory_bytes, memory))

    def copy(self) -> FreeCapacity:
        """Return an independent copy."""
        return FreeCapacity(self.compute_milli.copy(), self.memory_bytes.copy())

    def take(self, allocations: Iterable[Allocation]) -> None:
        """Subtract allocations, which must fit."""
        for device, compute, memory in allocations:
            self.compute_milli[device] -= compute
            self.memory_bytes[device] -= memory

    def give(self, allocations: Iterable[Allocation]) -> None:
        """Add back allocations that were taken."""
        for device, compute, memory in allocations:
            self.compute_milli[device] += compute
            self.memory_bytes[device] += memory
