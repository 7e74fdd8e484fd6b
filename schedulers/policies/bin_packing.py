"""Bin packing by what users request: how fractional GPUs are usually shared."""

from __future__ import annotations

from collections.abc import Hashable
from random import Random

import numpy as np

from presage.schedulers.core.action import Start
from presage.schedulers.core.allocation import FULL_DEVICE_MILLI, Allocation
from presage.schedulers.core.capacity.free_capacity import FreeCapacity
from presage.schedulers.core.capacity.requests import members, suitable
from presage.schedulers.core.cluster import Cluster
from presage.schedulers.core.forecasts import Forecasts
from presage.schedulers.core.job import Job
from presage.schedulers.core.state import State
from presage.schedulers.policies.fifo import Fifo
from presage.schedulers.policies.placement import consolidated
from presage.schedulers.policies.priority_guard import PriorityGuard


class BinPacking(Fifo):
    """By arrival, the requested part of the fullest device that has it; who does not fit is passed
    over.

    Requests are taken at their word: what a job really needs, and who slows whom, is not asked. So
    is a fraction requested of vCUDA-like device plugins (Alibaba's openb trace is of one). Who ran
    out of memory beside others has whole devices from then on.
    """

    def decide(self, state: State, forecasts: Forecasts, rng: Random) -> list[Start]:
        """Start all that fit."""
        actions: list[Start] = []
        if not len(state.pending):
            return actions
        capacity, idle, turns = state.capacity(), state.idle(), state.pending.turns()
        passed_over = PriorityGuard(state)
        unfit: set[Hashable] = set()
        for job in turns:
            overflowed = state.status(job.job_id).overflows > 0
            if job.request in unfit and not overflowed:
                turns.skip()
                continue
            if overflowed or (job.compute_milli == FULL_DEVICE_MILLI and not job.memory_bytes):
                allocations = consolidated(job, state.cluster, idle.copy())
            else:
                allocations = fullest(job, state.cluster, capacity)
            if allocations is None or passed_over.blocks(job, allocations):
                passed_over.add(job)
                if not overflowed:  # others of its shape have not, and may yet fit
                    turns.skip()
                    unfit.add(job.request)
                continue
            idle.take(
                [allocation.device for allocation in allocations if idle.has(allocation.device)]
            )
            capacity.take(allocations)
            actions.append(Start(job.job_id, allocations))
        return actions


def fullest(job: Job, cluster: Cluster, capacity: FreeCapacity) -> tuple[Allocation, ...] | None:
    """What a job requests, of the devices with the least compute left that have it; None if none.

    A gang goes to the node with the fewest such devices that has enough; if there is none, it goes
    to the fullest devices of the cluster.
    """
    devices, fits, gang = cluster.columns, suitable(job, cluster, capacity), members(job, cluster)
    chosen = np.flatnonzero(fits)
    if len(chosen) < gang:
        return None
    if gang > 1:
        on_node = np.bincount(devices.node[chosen], minlength=len(cluster.nodes))
        enough = np.where(on_node >= gang, on_node, len(fits) + 1)
        node = int(enough.argmin())
        if on_node[node] >= gang:
            chosen = chosen[devices.node[chosen] == node]
    order = np.argsort(capacity.compute_milli[chosen], kind="stable")[:gang]
    return tuple(job.requested(cluster.whole[device]) for device in chosen[order].tolist())
