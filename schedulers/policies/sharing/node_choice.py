"""Choice of a node by the controller: the node with the most free compute (C2, C3)."""

from __future__ import annotations

from random import Random

import numpy as np
from numpy.typing import NDArray

from presage.schedulers.core.capacity.free_capacity import FreeCapacity
from presage.schedulers.core.cluster import DeviceColumns


def choose_node(
    fits: NDArray[np.bool_],
    capacity: FreeCapacity,
    devices: DeviceColumns,
    rng: Random | None = None,
) -> int | None:
    """Return the node with the most free compute on a device that fits; None if none fits (C3).

    Parameters
    ----------
    fits : ndarray of shape (devices,)
        Devices with enough free capacity for the job's predicted needs (C2). A node is
        feasible if it has one.
    rng : Random, optional
        Chooses among equally good nodes; by default the first one is returned.
    """
    left = np.where(fits, capacity.compute_milli, -1)
    most = int(left.max())
    if most < 0:
        return None
    if rng is None:
        return int(devices.node[left.argmax()])
    best: list[int] = np.unique(devices.node[left == most]).tolist()
    return rng.choice(best)
