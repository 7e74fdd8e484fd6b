"""Starts by rank: a job may take the devices of running jobs that rank behind it."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence

from presage.schedulers.core.action import Preempt, Start
from presage.schedulers.core.allocation import Allocation
from presage.schedulers.core.capacity.consolidation import place_consolidated
from presage.schedulers.core.capacity.idle_devices import IdleDevices
from presage.schedulers.core.job import Job
from presage.schedulers.core.job_status import JobStatus
from presage.schedulers.core.queue import Key
from presage.schedulers.core.state import State

Rank = Callable[[Job, JobStatus], Key]


def start_by_rank(state: State, rank: Rank) -> list[Preempt | Start]:
    """Return starts on exclusive devices in order of rank, until a job does not fit.

    ``rank`` orders running and pending jobs, smallest first; the rank of a pending job is its class
    and its key, as in the queue. A job that does not fit may take the devices of running jobs that
    rank behind it, the last one first. Only jobs whose devices it gets are preempted; they wait in
    the queue in order of their rank.
    """
    actions: list[Preempt | Start] = []
    worst: list[tuple[Key, str]] | None = None  # running jobs behind the first that does not fit
    again: list[tuple[Key, str]] = []  # heap of preempted jobs
    idle, pending = state.idle(), iter(state.pending)
    next_pending = next(pending, None)
    while again or next_pending is not None:
        job = next_pending
        if job is None or (again and again[0][0] < rank(job, state.status(job.job_id))):
            job = state.job(heapq.heappop(again)[1])
        else:
            next_pending = next(pending, None)
        allocations = place_consolidated(job, state.cluster, idle)
        if allocations is None:
            mine = rank(job, state.status(job.job_id))
            if worst is None:
                worst = sorted(_behind(mine, state, rank), reverse=True)
            allocations, out = _in_place_of(worst, mine, job, state, idle)
            if allocations is None:
                break
            actions += [Preempt(victim) for _, victim in out]
            worst = [one for one in worst if one not in out]
            for one in out:
                heapq.heappush(again, one)
        actions.append(Start(job.job_id, allocations))
    return actions


def _behind(mine: Key, state: State, rank: Rank) -> Iterator[tuple[Key, str]]:
    for job_id, status in state.running.items():
        theirs = rank(state.job(job_id), status)
        if theirs > mine:
            yield theirs, job_id


def _in_place_of(
    worst: Sequence[tuple[Key, str]], mine: Key, job: Job, state: State, idle: IdleDevices
) -> tuple[tuple[Allocation, ...] | None, list[tuple[Key, str]]]:
    """Return a job's allocations, taken from ``idle`` and from jobs behind it, and these jobs."""
    freed, out = idle.copy(), []
    for one in worst:
        if one[0] <= mine:
            break
        out.append(one)
        freed.give(_devices(one, state))
        allocations = place_consolidated(job, state.cluster, freed)
        if allocations is not None:
            got = {allocation.device for allocation in allocations}
            out = [one for one in out if not got.isdisjoint(_devices(one, state))]
            idle.give([device for one in out for device in _devices(one, state)])
            idle.take(sorted(got))
            return allocations, out
    return None, []


def _devices(one: tuple[Key, str], state: State) -> list[int]:
    return [allocation.device for allocation in state.status(one[1]).allocations]
