"""Bin packing by requests: the usual way to share fractional GPUs."""

from __future__ import annotations

from collections.abc import Hashable
from copy import copy
from random import Random

import numpy as np

from presage.schedulers.core.action import Start
from presage.schedulers.core.allocation import FULL_DEVICE_MILLI, Allocation
from presage.schedulers.core.capacity.consolidation import place_consolidated
from presage.schedulers.core.capacity.free_capacity import FreeCapacity
from presage.schedulers.core.capacity.resource_requests import fitting_devices, gang_size
from presage.schedulers.core.cluster import Cluster
from presage.schedulers.core.forecasts import Forecasts
from presage.schedulers.core.job import Job
from presage.schedulers.core.policy import PolicyNeeds
from presage.schedulers.core.state import State
from presage.schedulers.policies.fifo import Fifo
from presage.schedulers.policies.priority_guard import PriorityGuard


class BinPacking(Fifo):
    """Policy that allocates requested parts of devices, on the fullest device that has them.

    Jobs start by arrival; a job that does not fit is skipped. Predicted needs and slowdowns are
    ignored, as by vCUDA-like device plugins (Alibaba's openb trace comes from one). A job that ran
    out of memory on a shared device gets exclusive devices afterwards.
    """

    needs = PolicyNeeds(allocation="requested")

    def __init__(self) -> None:
        self._spread = True  # a gang over several nodes if no node has room for all of it

    def controller_policy(self) -> BinPacking:
        """Return a policy that keeps each gang on one node, as live clusters require."""
        other = copy(self)
        other._spread = False
        return other

    def decide(self, state: State, forecasts: Forecasts, rng: Random) -> list[Start]:
        """Start all jobs that fit."""
        actions: list[Start] = []
        if not len(state.pending):
            return actions
        capacity, idle, cursor = state.capacity(), state.idle(), state.pending.cursor()
        guard = PriorityGuard(state)
        unfit: set[Hashable] = set()
        for job in cursor:
            overflowed = state.status(job.job_id).overflows > 0
            if job.request in unfit and not overflowed:
                cursor.skip()
                continue
            if overflowed or (job.compute_milli == FULL_DEVICE_MILLI and not job.memory_bytes):
                allocations = place_consolidated(job, state.cluster, idle.copy())
            else:
                allocations = fullest(job, state.cluster, capacity, spread=self._spread)
            if allocations is None or guard.blocks(job, allocations):
                guard.add(job)
                if not overflowed:  # others with its request have not, and may still fit
                    cursor.skip()
                    unfit.add(job.request)
                continue
            idle.take(
                [allocation.device for allocation in allocations if idle.is_idle(allocation.device)]
            )
            capacity.take(allocations)
            actions.append(Start(job.job_id, allocations))
        return actions


def fullest(
    job: Job, cluster: Cluster, capacity: FreeCapacity, *, spread: bool = True
) -> tuple[Allocation, ...] | None:
    """Return what a job requests of the devices with the least free compute; None if none fit.

    A gang is placed on the node with the fewest devices that fit, among nodes with enough of them.
    If there is no such node, it gets the fullest devices of the cluster if ``spread``, else none.
    """
    devices, fits, gang = (
        cluster.columns,
        fitting_devices(job, cluster, capacity),
        gang_size(job, cluster),
    )
    chosen = np.flatnonzero(fits)
    if len(chosen) < gang:
        return None
    if gang > 1:
        on_node = np.bincount(devices.node[chosen], minlength=len(cluster.nodes))
        enough = np.where(on_node >= gang, on_node, len(fits) + 1)
        node = int(enough.argmin())
        if on_node[node] >= gang:
            chosen = chosen[devices.node[chosen] == node]
        elif not spread:
            return None
    order = np.argsort(capacity.compute_milli[chosen], kind="stable")[:gang]
    return tuple(
        job.requested(cluster.full_allocations[device]) for device in chosen[order].tolist()
    )
