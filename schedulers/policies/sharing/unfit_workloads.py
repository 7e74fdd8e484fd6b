"""Cache of the workload keys that fit on no device, between decisions."""

from __future__ import annotations

from collections.abc import Hashable

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
        self._grown = np.zeros(0, np.intp)  # devices whose free capacity has grown
        self._least: FreeCapacity | None = None  # free capacity before an eviction

    def begin(self, capacity: FreeCapacity) -> None:
        """Begin a decision with this free capacity."""
        self._unfit_now, self._least = set(), None
        if self._last_capacity is not None:
            self._grown = np.flatnonzero(_has_grown(self._last_capacity, capacity))

    def fitting(
        self,
        workload_key: Hashable,
        needs: Needs,
        capacity: FreeCapacity,
        drained: NDArray[np.bool_],
    ) -> NDArray[np.bool_] | None:
        """Return the devices that fit, except the ``drained`` ones; None if there are none (C2).

        Result and ``drained`` have shape (devices,).
        """
        if workload_key in self._workload_keys and not self._fits_grown_device(
            needs, capacity, drained
        ):
            self._unfit_now.add(workload_key)
            return None
        fits = needs.fit(capacity, self._devices) & ~drained
        if fits.any():
            return fits
        self._unfit_now.add(workload_key)
        return None

    def grow(self, before: FreeCapacity, capacity: FreeCapacity) -> None:
        """Note that the decision has freed capacity since ``before``."""
        more = _has_grown(before, capacity)
        self._grown = np.union1d(self._grown, np.flatnonzero(more))
        least = self._least if self._least is not None else before
        self._least = _minimum(least, before)

    def end(self, capacity: FreeCapacity, drained: NDArray[np.bool_]) -> None:
        """End a decision with this free capacity and these ``drained`` devices."""
        # Keys that fitted nowhere before an eviction were not checked again after it.
        last = capacity.copy() if self._least is None else _minimum(self._least, capacity)
        last.compute_milli[drained] = _NO_CAPACITY
        self._workload_keys, self._last_capacity = self._unfit_now, last

    def _fits_grown_device(
        self, needs: Needs, capacity: FreeCapacity, drained: NDArray[np.bool_]
    ) -> bool:
        grown = self._grown
        if not len(grown):
            return False
        kind = self._devices.kind[grown]
        fits = capacity.compute_milli[grown] >= np.array(needs.compute_milli)[kind]
        fits &= capacity.memory_bytes[grown] >= np.array(needs.memory_bytes)[kind]
        return bool((fits & ~drained[grown]).any())


def _has_grown(before: FreeCapacity, capacity: FreeCapacity) -> NDArray[np.bool_]:
    """Return which devices have more free compute or memory than before."""
    more: NDArray[np.bool_] = capacity.compute_milli > before.compute_milli
    return more | (capacity.memory_bytes > before.memory_bytes)


def _minimum(one: FreeCapacity, other: FreeCapacity) -> FreeCapacity:
    return FreeCapacity(
        np.minimum(one.compute_milli, other.compute_milli),
        np.minimum(one.memory_bytes, other.memory_bytes),
    )
