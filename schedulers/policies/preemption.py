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
from presage.schedulers.policies.priority_guard import PriorityGuard

Rank = Callable[[Job, JobStatus], Key]


def start_by_rank(state: State, rank: Rank, *, skips_unfit: bool = False) -> list[Preempt | Start]:
    """Return starts on exclusive devices in order of rank.

    ``rank`` orders running and pending jobs, smallest first; the rank of a pending job is its class
    and its key, as in the queue. A job that does not fit may take the devices of running jobs that
    rank behind it, the last one first. Only jobs whose devices it gets are preempted; they wait in
    the queue in order of their rank.

    Parameters
    ----------
    skips_unfit : bool
        Whether the jobs behind one that cannot start are considered as well; else it blocks them.
    """
    actions: list[Preempt | Start] = []
    guard = PriorityGuard(state)
    worst: list[tuple[Key, str]] | None = None  # running jobs behind the first that does not fit
    evicted: list[tuple[Key, str]] = []  # heap of preempted jobs
    idle, pending = state.idle(), iter(state.pending)
    next_pending = next(pending, None)
    while evicted or next_pending is not None:
        job = next_pending
        if job is None or (evicted and evicted[0][0] < rank(job, state.status(job.job_id))):
            job = state.job(heapq.heappop(evicted)[1])
        else:
            next_pending = next(pending, None)
        allocations = place_consolidated(job, state.cluster, idle)
        if allocations is None:
            own_rank = rank(job, state.status(job.job_id))
            if worst is None:
                worst = sorted(_behind(own_rank, state, rank), reverse=True)
            allocations, victims = _in_place_of(worst, own_rank, job, state, idle)
            if allocations is None:
                is_last = not idle.count and (not worst or worst[0][0] <= own_rank)
                if is_last or not skips_unfit:
                    break
                guard.add(job)
                continue
            actions += [Preempt(victim) for _, victim in victims]
            worst = [ranked for ranked in worst if ranked not in victims]
            for ranked in victims:
                heapq.heappush(evicted, ranked)
        elif guard.blocks(job, allocations):
            idle.give([allocation.device for allocation in allocations])
            continue
        actions.append(Start(job.job_id, allocations))
    return actions


def _behind(own_rank: Key, state: State, rank: Rank) -> Iterator[tuple[Key, str]]:
    for job_id, status in state.running.items():
        other_rank = rank(state.job(job_id), status)
        if other_rank > own_rank:
            yield other_rank, job_id


def _in_place_of(
    worst: Sequence[tuple[Key, str]], own_rank: Key, job: Job, state: State, idle: IdleDevices
) -> tuple[tuple[Allocation, ...] | None, list[tuple[Key, str]]]:
    """Return a job's allocations, taken from ``idle`` and from jobs behind it, and these jobs."""
    freed, victims = idle.copy(), []
    for ranked in worst:
        if ranked[0] <= own_rank:
            break
        victims.append(ranked)
        freed.give(_devices(ranked, state))
        allocations = place_consolidated(job, state.cluster, freed)
        if allocations is not None:
            devices = {allocation.device for allocation in allocations}
            victims = [
                ranked for ranked in victims if not devices.isdisjoint(_devices(ranked, state))
            ]
            idle.give([device for ranked in victims for device in _devices(ranked, state)])
            idle.take(sorted(devices))
            return allocations, victims
    return None, []


def _devices(ranked: tuple[Key, str], state: State) -> list[int]:
    return [allocation.device for allocation in state.status(ranked[1]).allocations]
