"""First in, first out with backfilling: later jobs start early if they delay no earlier job."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import partial
from heapq import merge
from itertools import islice, takewhile
from random import Random
from typing import Literal

from presage.schedulers.core.action import Start
from presage.schedulers.core.allocation import Allocation
from presage.schedulers.core.capacity.consolidation import place_consolidated
from presage.schedulers.core.capacity.idle_devices import IdleDevices
from presage.schedulers.core.capacity.resource_requests import gang_size
from presage.schedulers.core.forecasts import Forecasts
from presage.schedulers.core.job import Job
from presage.schedulers.core.state import State
from presage.schedulers.policies.backfilling.predicted_ends import PredictedEnds, end_s
from presage.schedulers.policies.backfilling.reservations import Reservations
from presage.schedulers.policies.fifo import Fifo
from presage.schedulers.policies.priority_guard import PriorityGuard

DEPTH = 100  # jobs behind the first that does not fit which are considered


class Backfill(Fifo):
    """Policy that starts jobs by arrival and backfills behind the first job that does not fit.

    The forecasts of the running jobs say when and where the blocked job can start. A later job may
    start now if it is predicted to end by then, or if it runs on other devices. If that time cannot
    be predicted, no job is backfilled.

    Parameters
    ----------
    reserve : {"first", "all"}
        Jobs whose predicted start is not delayed: the first that does not fit (EASY), or all up to
        ``DEPTH`` jobs (conservative backfilling, as in Slurm).

    References
    ----------
    Lifka: The ANL/IBM SP Scheduling System, JSSPP 1995 (EASY). Mu'alem, Feitelson: Utilization,
    predictability, workloads, and user runtime estimates in scheduling the IBM SP2 with
    backfilling, IEEE TPDS 12(6), 2001 (conservative).
    """

    def __init__(self, *, reserve: Literal["first", "all"] = "first") -> None:
        self._reserves_all = reserve == "all"
        self._ends = PredictedEnds()

    def decide(self, state: State, forecasts: Forecasts, rng: Random) -> list[Start]:
        """Start jobs from the head of the queue while they fit, then backfill."""
        if self._reserves_all:
            return self._start_by_reservations(state, forecasts)
        actions: list[Start] = []
        idle, head = state.idle(), None
        for job in state.pending:
            allocations = place_consolidated(job, state.cluster, idle)
            if allocations is None:
                head = job
                break
            actions.append(Start(job.job_id, allocations))
        if head is None or not idle.count:
            return actions
        at_s, reserved = self._reservation(head, state, forecasts, idle, actions)
        if at_s == math.inf:
            return actions
        gaps = _Gaps(state, forecasts, idle, reserved, at_s)
        return actions + gaps.fill(head, {start.job_id for start in actions})

    def _reservation(
        self,
        head: Job,
        state: State,
        forecasts: Forecasts,
        idle: IdleDevices,
        started: list[Start],
    ) -> tuple[float, frozenset[int]]:
        """Return when the head is predicted to start, and on which devices; infinite if unknown."""
        begun = {start.job_id: start.allocations for start in started}
        ends = self._ends.in_order(state, forecasts)
        if begun:
            begun_ends = (
                (end_s(state.job(job_id), allocations, state, forecasts), job_id)
                for job_id, allocations in begun.items()
            )
            ends = merge(ends, sorted(begun_ends))
        free = idle.copy()
        size, node_of = state.cluster.nodes_of(head.kinds).largest, state.cluster.node_of
        gang = gang_size(head, state.cluster)
        least = gang if gang <= size else 1  # idle devices of a node that can make a difference
        for ends_s, job_id in takewhile(lambda end: end[0] < math.inf, ends):
            allocations = begun.get(job_id) or state.status(job_id).allocations
            free.give([allocation.device for allocation in allocations])
            if free.count >= gang and any(
                free.count_on(node_of[g.device]) >= least for g in allocations
            ):
                found = place_consolidated(head, state.cluster, free)
                if found is not None:
                    return ends_s, frozenset(allocation.device for allocation in found)
        return math.inf, frozenset()

    def _start_by_reservations(self, state: State, forecasts: Forecasts) -> list[Start]:
        """Return starts of jobs whose earliest possible start, after all earlier jobs, is now."""
        actions: list[Start] = []
        if not state.idle_count:
            return actions
        ends = (
            (at_s, state.status(job_id).allocations)
            for at_s, job_id in self._ends.in_order(state, forecasts)
        )
        reservations = Reservations(state.cluster, state.now_s, state.idle(), ends)
        guard = PriorityGuard(state)
        for job in islice(state.pending, DEPTH):
            found = reservations.earliest(job, partial(_duration_s, job, state, forecasts))
            if found is None:
                break
            begin_s, until_s, allocations = found
            if begin_s > state.now_s:
                guard.add(job)
            elif guard.blocks(job, allocations):
                continue
            else:
                actions.append(Start(job.job_id, allocations))
            reservations.reserve(begin_s, until_s, allocations)
        return actions


class _Gaps:
    """Idle devices that later jobs may use until the head of the queue can start.

    Parameters
    ----------
    reserved : frozenset of int
        Devices that the head is predicted to get.
    until_s : float
        Predicted start of the head.
    """

    def __init__(
        self,
        state: State,
        forecasts: Forecasts,
        idle: IdleDevices,
        reserved: frozenset[int],
        until_s: float,
    ) -> None:
        self._state, self._forecasts = state, forecasts
        self._idle, self._until_s = idle, until_s
        self._elsewhere = idle.copy()  # devices that the head will not get
        self._elsewhere.take([device for device in reserved if self._elsewhere.is_idle(device)])
        self._guard = PriorityGuard(state)

    def fill(self, head: Job, started: set[str]) -> list[Start]:
        """Return starts of jobs behind the head, in order."""
        actions: list[Start] = []
        considered = 0
        self._guard.add(head)
        for job in self._state.pending.jobs_up_to(self._idle.count):
            if job is head or job.job_id in started:
                continue
            considered += 1
            if considered > DEPTH or not self._idle.count:
                break
            allocations = self._allocations(job)
            if allocations is None:
                self._guard.add(job)
            else:
                actions.append(Start(job.job_id, allocations))
        return actions

    def _allocations(self, job: Job) -> tuple[Allocation, ...] | None:
        """Take devices for a job that delays no earlier job; None if there are none."""
        cluster, free, other = self._state.cluster, self._idle, self._elsewhere
        allocations = place_consolidated(job, cluster, free)
        if allocations is None:
            return None
        if end_s(job, allocations, self._state, self._forecasts) > self._until_s:
            # It would end too late where it fits best: it may only use other devices than the head.
            free.give(_devices(allocations))
            free, other = other, free
            allocations = place_consolidated(job, cluster, free)
        if allocations is None:
            return None
        if self._guard.blocks(job, allocations):
            free.give(_devices(allocations))
            return None
        other.take([device for device in _devices(allocations) if other.is_idle(device)])
        return allocations


def _duration_s(
    job: Job, state: State, forecasts: Forecasts, allocations: tuple[Allocation, ...]
) -> float:
    return end_s(job, allocations, state, forecasts) - state.now_s


def _devices(allocations: Iterable[Allocation]) -> list[int]:
    return [allocation.device for allocation in allocations]
