"""Bin packing by what users request: how fractional GPUs are usually shared."""

from __future__ import annotations

from collections.abc import Hashable
from random import Random

import numpy as np

from presage.schedulers.core.action import Start
from presage.schedulers.core.allocation import WHOLE, Grant
from presage.schedulers.core.capacity.free_capacity import Room
from presage.schedulers.core.capacity.requests import members, suitable
from presage.schedulers.core.cluster import Cluster
from presage.schedulers.core.forecasts import Forecasts
from presage.schedulers.core.job import Job
from presage.schedulers.core.state import State
from presage.schedulers.policies.fifo import Fifo
from presage.schedulers.policies.placement import consolidated
from presage.schedulers.policies.priority_guard import PassedOver


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
        room, idle, turns = state.room(), state.idle(), state.pending.turns()
        passed_over = PassedOver(state)
        unfit: set[Hashable] = set()
        for job in turns:
            overflowed = state.standing(job.job_id).overflows > 0
            if job.request in unfit and not overflowed:
                turns.pass_over()
                continue
            if overflowed or (job.compute_milli == WHOLE and not job.memory_bytes):
                grants = consolidated(job, state.cluster, idle.copy())
            else:
                grants = fullest(job, state.cluster, room)
            if grants is None or passed_over.forbid(job, grants):
                passed_over.add(job)
                if not overflowed:  # others of its shape have not, and may yet fit
                    turns.pass_over()
                    unfit.add(job.request)
                continue
            idle.take([grant.device for grant in grants if idle.has(grant.device)])
            room.take(grants)
            actions.append(Start(job.job_id, grants))
        return actions


def fullest(job: Job, cluster: Cluster, room: Room) -> tuple[Grant, ...] | None:
    """What a job requests, of the devices with the least compute left that have it; None if none.

    A gang goes to the node with the fewest such devices that has enough; if there is none, it goes
    to the fullest devices of the cluster.
    """
    devices, fits, gang = cluster.columns, suitable(job, cluster, room), members(job, cluster)
    chosen = np.flatnonzero(fits)
    if len(chosen) < gang:
        return None
    if gang > 1:
        on_node = np.bincount(devices.node[chosen], minlength=len(cluster.nodes))
        enough = np.where(on_node >= gang, on_node, len(fits) + 1)
        node = int(enough.argmin())
        if on_node[node] >= gang:
            chosen = chosen[devices.node[chosen] == node]
    order = np.argsort(room.compute_milli[chosen], kind="stable")[:gang]
    return tuple(job.requested(cluster.whole[device]) for device in chosen[order].tolist())
