"""Checks of a job's resource requests against allocations and free capacity."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from presage.schedulers.core.allocation import FULL_DEVICE_MILLI, Allocation
from presage.schedulers.core.capacity.free_capacity import FreeCapacity
from presage.schedulers.core.cluster import Cluster
from presage.schedulers.core.job import Job


def gang_size(job: Job, cluster: Cluster) -> int:
    """Return the number of devices that a gang gets from a policy that does not resize jobs.

    It is the requested number; for an elastic job at most the number of devices of its kinds.
    """
    if not job.min_gpus:
        return job.gpus
    return min(job.gpus, cluster.nodes_of(job.kinds).devices)


def satisfies_request(allocation: Allocation, job: Job, cluster: Cluster) -> bool:
    """Return whether an allocation is at least what a job requests of each device."""
    requested = job.requested(cluster.full_allocations[allocation.device])
    return (
        allocation.compute_milli >= requested.compute_milli
        and allocation.memory_bytes >= requested.memory_bytes
        and (not job.kinds or cluster.kind_of(allocation.device) in job.kinds)
    )


def fitting_devices(job: Job, cluster: Cluster, capacity: FreeCapacity) -> NDArray[np.bool_]:
    """Return a mask of shape (devices,): which devices have the capacity that a job requests."""
    devices = cluster.columns
    memory_bytes: int | NDArray[np.int64] = job.memory_bytes or devices.memory_bytes
    if not job.memory_bytes and job.compute_milli != FULL_DEVICE_MILLI:
        memory_bytes = devices.memory_bytes * job.compute_milli // FULL_DEVICE_MILLI
    fits: NDArray[np.bool_] = capacity.compute_milli >= job.compute_milli
    fits &= capacity.memory_bytes >= memory_bytes
    if job.kinds:
        fits &= devices.has_kind(job.kinds)
    return fits
