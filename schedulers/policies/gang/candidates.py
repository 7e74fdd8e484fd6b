"""Candidate devices for members of a gang, and the interference on each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from presage.schedulers.core.allocation import FULL_DEVICE_MILLI, Allocation
from presage.schedulers.core.capacity.task_slots import task_slots
from presage.schedulers.core.cluster import Cluster
from presage.schedulers.core.forecasts import Forecasts
from presage.schedulers.core.job import Job
from presage.schedulers.policies.gang.occupancy import Tenants
from presage.schedulers.policies.packing.compatibility import Limits

Needs = Mapping[str, tuple[int, int]]  # compute_milli and memory_bytes of a device of each kind


@dataclass(frozen=True, slots=True)
class Candidates:
    """Candidates of one job.

    Attributes
    ----------
    devices : ndarray of int of shape (candidates, gpus_per_task)
        Devices that a task can have, in depth-first order of the topology.
    degradation : ndarray of shape (candidates,)
        SD (requirement B4): mean loss of performance, 1 - 1 / slowdown, of the candidate job
        and all jobs on its device; averaged over the devices of a task.
    with_capacity : int
        Number of devices with enough capacity; on some of them jobs would become too slow.
    """

    devices: NDArray[np.int64]
    degradation: NDArray[np.float64]
    needs: Needs
    with_capacity: int

    def allocations(self, places: NDArray[np.int64], cluster: Cluster) -> tuple[Allocation, ...]:
        """Return the allocations at some places, by device number."""
        devices = sorted(self.devices[places].ravel().tolist())
        return tuple(Allocation(device, *self.needs[cluster.kind_of(device)]) for device in devices)


def needs_of(
    job: Job, cluster: Cluster, forecasts: Forecasts, limits: Limits, *, exclusive: bool
) -> Needs:
    """Return the predicted needs of a member by kind; exclusive devices if ``exclusive``."""
    return {
        kind: (FULL_DEVICE_MILLI, cluster.memory_of[kind])
        if exclusive
        else limits.needs(forecasts.prediction(job, kind))
        for kind in cluster.kinds
        if not job.kinds or kind in job.kinds
    }


def candidates_of(
    job: Job,
    needs: Needs,
    cluster: Cluster,
    tenants: Tenants,
    forecasts: Forecasts,
    limits: Limits,
) -> Candidates:
    """Return the devices where a member fits and no job becomes too slow.

    All slowdowns, of the candidate and of the jobs there, are requested in one batch, once for each
    occupancy (B1 and B2).
    """
    fits = np.zeros(cluster.devices, bool)
    for kind, (compute_milli, memory_bytes) in needs.items():
        fits_kind = cluster.columns.kind == cluster.columns.kinds.index(kind)
        fits_kind &= tenants.capacity.compute_milli >= compute_milli
        fits_kind &= tenants.capacity.memory_bytes >= memory_bytes
        fits |= fits_kind
    fits &= tenants.count < limits.most_members
    in_order = cluster.topology.depth_first
    devices = in_order[fits[in_order]]
    degradation = np.zeros(len(devices))
    shared = ~tenants.unoccupied[devices]
    numbers, inverse = np.unique(tenants.occupancies(devices[shared]), return_inverse=True)
    occupancies = [tenants.occupancy(number) for number in numbers.tolist()]
    predicted = forecasts.slowdowns([(kind, (*jobs, job)) for kind, jobs in occupancies])
    degradations = np.array([_degradation(slowdowns, limits) for slowdowns in predicted])
    degradation[shared] = degradations[inverse]
    usable = np.isfinite(degradation)
    places = np.flatnonzero(usable)[task_slots(job, cluster, devices[usable], degradation[usable])]
    return Candidates(devices[places], degradation[places].mean(axis=1), needs, len(devices))


def _degradation(slowdowns: tuple[float, ...], limits: Limits) -> float:
    if max(slowdowns) > limits.most_slowdown:
        return np.inf
    return sum(1 - 1 / slowdown for slowdown in slowdowns) / len(slowdowns)
