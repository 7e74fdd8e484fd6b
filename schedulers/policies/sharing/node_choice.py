"""Choice of a node by the controller: the node with the most free compute (C2 to C4)."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import numpy as np
from numpy.typing import NDArray

from presage.schedulers.core.capacity.free_capacity import FreeCapacity
from presage.schedulers.core.cluster import DeviceColumns

_FIRST = 256  # devices in the first part of an order


def most_free(candidates: NDArray[np.int64], free_milli: NDArray[np.int64]) -> Iterator[int]:
    """Yield devices by falling free compute; ties go to the first device.

    Few of them are read, so only the first part is sorted at first.

    Parameters
    ----------
    candidates : ndarray of shape (candidates,)
        Numbers of devices, in order.
    free_milli : ndarray of shape (devices,)
        Free compute of all devices.
    """
    free_milli = free_milli[candidates]
    if len(candidates) > _FIRST:
        least_milli = np.partition(free_milli, -_FIRST)[-_FIRST]
        is_first = free_milli > least_milli
        yield from _in_order(candidates[is_first], free_milli[is_first])
        yield from map(int, candidates[free_milli == least_milli])
        is_last = free_milli < least_milli
        candidates, free_milli = candidates[is_last], free_milli[is_last]
    yield from _in_order(candidates, free_milli)


def _in_order(candidates: NDArray[np.int64], free_milli: NDArray[np.int64]) -> list[int]:
    found: list[int] = candidates[np.argsort(-free_milli, kind="stable")].tolist()
    return found


def choose_node(
    fitting: NDArray[np.int64],
    capacity: FreeCapacity,
    devices: DeviceColumns,
    rng: Random | None = None,
) -> int | None:
    """Return the node with the most free compute on a device that fits; None if none fits (C3).

    Parameters
    ----------
    fitting : ndarray of shape (fitting,)
        Devices with enough free capacity for the job's predicted needs (C2), in order. A node is
        feasible if it has one.
    rng : Random, optional
        Chooses among equally good nodes; by default the first one is returned.
    """
    if not len(fitting):
        return None
    left = capacity.compute_milli[fitting]
    if rng is None:
        return int(devices.node[fitting[left.argmax()]])
    best: list[int] = np.unique(devices.node[fitting[left == left.max()]]).tolist()
    return rng.choice(best)
