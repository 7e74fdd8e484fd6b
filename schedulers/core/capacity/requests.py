"""What users request of devices, against what is granted and what is left."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from presage.schedulers.core.allocation import FULL_DEVICE_MILLI, Allocation
from presage.schedulers.core.capacity.free_capacity import FreeCapacity
from presage.schedulers.core.cluster import Cluster
from presage.schedulers.core.job import Job


def members(job: Job, cluster: Cluster) -> int:
    """Devices that a gang is given by who resizes nobody: as many as it asks for.

    Of an elastic one at most as many as there are for it.
    """
    if not job.min_gpus:
        return job.gpus
    return min(job.gpus, cluster.nodes_of(job.kinds).devices)


def covers(allocation: Allocation, job: Job, cluster: Cluster) -> bool:
    """Whether a grant is as much as a job's user requests of each device."""
    asked = job.requested(cluster.whole[allocation.device])
    return (
        allocation.compute_milli >= asked.compute_milli
        and allocation.memory_bytes >= asked.memory_bytes
        and (not job.kinds or cluster.kind_of(allocation.device) in job.kinds)
    )


def suitable(job: Job, cluster: Cluster, capacity: FreeCapacity) -> NDArray[np.bool_]:
    """Which devices have left what a job's user requests of each: of shape (devices,)."""
    devices = cluster.columns
    asked_bytes = job.memory_bytes or devices.memory_bytes * job.compute_milli // FULL_DEVICE_MILLI
    fits: NDArray[np.bool_] = capacity.compute_milli >= job.compute_milli
    fits &= capacity.memory_bytes >= asked_bytes
    if job.kinds:
        fits &= devices.of_kinds(job.kinds)
    return fits
