"""Cache of the workload keys that fit on no device, between decisions."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

import numpy as np
from numpy.typing import NDArray

from presage.schedulers.core.capacity.free_capacity import FreeCapacity
from presage.schedulers.core.cluster import DeviceColumns
from presage.schedulers.policies.sharing.needs import Needs

_NO_CAPACITY = -1  # free compute of a device that is drained for other jobs


class Unfit:
    """Workload keys that fitted nowhere in the last decision, and the free capacity after it.

    They can fit now only on devices whose free capacity has grown since, so only these devices are
    checked for a long queue that has not changed. The cache saves time and changes no decision, as
    it compares capacities and does not rely on events.
    """

    def __init__(self, devices: DeviceColumns) -> None:
        self._devices = devices
        self._workload_keys: set[Hashable] = set()
        self._last_capacity: FreeCapacity | None = None  # after the last decision; or less
        self._unfit_now: set[Hashable] = set()  # keys that fit nowhere in this decision
        self._grown = np.zeros(0, np.int64)  # devices whose free capacity has grown, in order
        # Least free compute and memory of devices before evictions in this decision.
        self._least: dict[int, tuple[int, int]] = {}

    def begin(self, capacity: FreeCapacity) -> None:
        """Begin a decision with this free capacity."""
        self._unfit_now, self._least = set(), {}
        if self._last_capacity is not None:
            self._grown = np.flatnonzero(_has_grown(self._last_capacity, capacity))

    def fitting(
        self,
        workload_key: Hashable,
        needs: Needs,
        capacity: FreeCapacity,
        drained: NDArray[np.bool_],
    ) -> NDArray[np.int64]:
        """Return the devices that fit, in order, except the ``drained`` ones (C2).

        ``drained`` has shape (devices,).
        """
        if workload_key in self._workload_keys:
            grown = self._grown
            fits = grown[needs.fit_on(grown, capacity, self._devices) & ~drained[grown]]
        else:
            fits = np.flatnonzero(needs.fit(capacity, self._devices) & ~drained)
        if not len(fits):
            self._unfit_now.add(workload_key)
        return fits

    def grow(self, before: Mapping[int, tuple[int, int]]) -> None:
        """Note that the decision has freed capacity of devices.

        Parameters
        ----------
        before : mapping of int to (int, int)
            Free compute and memory of these devices before.
        """
        self._grown = np.union1d(self._grown, np.array([*before], np.int64))
        for device, (compute_milli, memory_bytes) in before.items():
            least = self._least.get(device, (compute_milli, memory_bytes))
            self._least[device] = min(least[0], compute_milli), min(least[1], memory_bytes)

    def end(self, capacity: FreeCapacity, drained: NDArray[np.bool_]) -> None:
        """End a decision with this free capacity and these ``drained`` devices."""
        last = capacity.copy()
        # Keys that fitted nowhere before an eviction were not checked again after it.
        for device, (compute_milli, memory_bytes) in self._least.items():
            last.compute_milli[device] = min(last.compute_milli[device], compute_milli)
            last.memory_bytes[device] = min(last.memory_bytes[device], memory_bytes)
        last.compute_milli[drained] = _NO_CAPACITY
        self._workload_keys, self._last_capacity = self._unfit_now, last


def _has_grown(before: FreeCapacity, capacity: FreeCapacity) -> NDArray[np.bool_]:
    """Return which devices have more free compute or memory than before."""
    more: NDArray[np.bool_] = capacity.compute_milli > before.compute_milli
    return more | (capacity.memory_bytes > before.memory_bytes)
