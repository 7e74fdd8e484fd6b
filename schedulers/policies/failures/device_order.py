"""Choice of exclusive devices for a gang by a preference, on one node where one can hold it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from presage.schedulers.core.allocation import FULL_DEVICE_MILLI
from presage.schedulers.core.capacity.free_capacity import FreeCapacity
from presage.schedulers.core.cluster import Cluster
from presage.schedulers.core.job import Job
from presage.system.arrays import Array

Mask = NDArray[np.bool_]
Devices = NDArray[np.int64]


def idle_mask(cluster: Cluster, capacity: FreeCapacity) -> Mask:
    """Return a mask of shape (devices,) of the devices that no job holds a part of."""
    found: Mask = (capacity.compute_milli == FULL_DEVICE_MILLI) & (
        capacity.memory_bytes == cluster.columns.memory_bytes
    )
    return found


def choose_devices(
    job: Job, gang: int, usable: Mask, preference: Array, cluster: Cluster
) -> Devices | None:
    """Return the ``gang`` preferred devices for a job; None if fewer are usable.

    Of the nodes that can hold the whole gang, the one with the smallest total preference is used.
    If there is none, the gang gets the preferred devices of the whole cluster.

    Parameters
    ----------
    usable : ndarray of bool, shape (devices,)
        Devices to choose from; kinds that the job does not allow are skipped.
    preference : ndarray of shape (devices,)
        Lower values first; ties go to the lower device number.
    """
    columns = cluster.columns
    allowed = usable & columns.has_kind(job.kinds) if job.kinds else usable
    devices = np.flatnonzero(allowed)
    if len(devices) < gang:
        return None
    devices = devices[np.argsort(preference[devices], kind="stable")]
    if len(cluster.nodes) == cluster.devices:
        return devices[:gang]
    node = columns.node[devices]
    large = np.flatnonzero(np.bincount(node, minlength=len(cluster.nodes)) >= gang)
    if not len(large):
        return devices[:gang]
    best = min(large, key=lambda one: float(preference[devices[node == one][:gang]].sum()))
    chosen: Devices = devices[node == best][:gang]
    return chosen


def avoided_mask(rates_per_s: Array, most: float, above: float, largest_gang: int) -> Mask:
    """Return a mask of the devices to leave idle because of their failure rates.

    Parameters
    ----------
    most : float
        Largest fraction of the devices to avoid.
    above : float
        Only devices are avoided whose rate exceeds this multiple of the cluster's median.
    largest_gang : int
        Number of devices that are never avoided.
    """
    devices = len(rates_per_s)
    count = max(0, min(int(most * devices), devices - largest_gang))
    worst = np.argsort(-rates_per_s, kind="stable")[:count]
    found = np.zeros(devices, bool)
    found[worst] = rates_per_s[worst] > above * np.median(rates_per_s)
    return found
