"""Cache of workload keys that fit on no device, from one decision to the next."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
from numpy.typing import NDArray

from presage.schedulers.core.capacity.free_capacity import FreeCapacity
from presage.schedulers.core.cluster import DeviceColumns
from presage.schedulers.policies.sharing.demand import Needs

_NOTHING = -1  # free compute of a device that is kept for others


class Unfit:
    """Workload keys that fitted nowhere in the last decision, and the free capacity after it.

    They can fit now only on devices with more free capacity than then, so only these devices are
    checked for a long queue that has not changed. The cache saves time and changes no decision:
    capacities are compared, whatever happened in between.
    """

    def __init__(self, devices: DeviceColumns) -> None:
        self._devices = devices
        self._workload_keys: set[Hashable] = set()
        self._then: FreeCapacity | None = None  # what was left; or less
        self._anew: set[Hashable] = set()  # keys that fit nowhere now
        self._grown = np.zeros(0, np.intp)  # devices with more free capacity than then
        self._least: FreeCapacity | None = None  # free capacity before this decision freed some

    def begin(self, capacity: FreeCapacity) -> None:
        """Begin a decision with this free capacity."""
        self._anew, self._least = set(), None
        if self._then is not None:
            self._grown = np.flatnonzero(_more(self._then, capacity))

    def fitting(
        self, workload_key: Hashable, needs: Needs, capacity: FreeCapacity, kept: NDArray[np.bool_]
    ) -> NDArray[np.bool_] | None:
        """Return the devices that fit, except those that are ``kept``; None if there are none (C2).

        Both of shape (devices,).
        """
        if workload_key in self._workload_keys and not self._where_it_grew(needs, capacity, kept):
            self._anew.add(workload_key)
            return None
        fits = needs.fit(capacity, self._devices) & ~kept
        if fits.any():
            return fits
        self._anew.add(workload_key)
        return None

    def grow(self, before: FreeCapacity, capacity: FreeCapacity) -> None:
        """Note that the decision has freed capacity since ``before``."""
        more = _more(before, capacity)
        self._grown = np.union1d(self._grown, np.flatnonzero(more))
        least = self._least if self._least is not None else before
        self._least = _lesser(least, before)

    def end(self, capacity: FreeCapacity, kept: NDArray[np.bool_]) -> None:
        """End a decision with this free capacity, and devices that are ``kept``."""
        # Keys that fitted nowhere before a device grew were not checked there since.
        then = capacity.copy() if self._least is None else _lesser(self._least, capacity)
        then.compute_milli[kept] = _NOTHING
        self._workload_keys, self._then = self._anew, then

    def _where_it_grew(self, needs: Needs, capacity: FreeCapacity, kept: NDArray[np.bool_]) -> bool:
        grown = self._grown
        if not len(grown):
            return False
        kind = self._devices.kind[grown]
        fits = capacity.compute_milli[grown] >= np.array(needs.compute_milli)[kind]
        fits &= capacity.memory_bytes[grown] >= np.array(needs.memory_bytes)[kind]
        return bool((fits & ~kept[grown]).any())


def _more(before: FreeCapacity, capacity: FreeCapacity) -> NDArray[np.bool_]:
    """Return which devices have more free compute or memory than before."""
    more: NDArray[np.bool_] = capacity.compute_milli > before.compute_milli
    return more | (capacity.memory_bytes > before.memory_bytes)


def _lesser(one: FreeCapacity, other: FreeCapacity) -> FreeCapacity:
    return FreeCapacity(
        np.minimum(one.compute_milli, other.compute_milli),
        np.minimum(one.memory_bytes, other.memory_bytes),
    )
