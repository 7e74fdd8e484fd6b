"""Starting jobs by rank, where a better one may take the devices of a worse one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from presage.schedulers.action import Preempt, Start
from presage.schedulers.grant import Grant
from presage.schedulers.idle_devices import IdleDevices
from presage.schedulers.job import Job
from presage.schedulers.placing import consolidated
from presage.schedulers.queue import Key
from presage.schedulers.standing import Standing
from presage.schedulers.state import State


def start_by_rank(state: State, rank: Callable[[Job, Standing], Key]) -> list[Preempt | Start]:
    """Whole devices for pending jobs in order, until one does not fit.

    ``rank`` orders running jobs and the pending ones among each other, smallest first; that of a
    pending job is its key in the queue. A job that does not fit may have the devices of running
    ones that rank behind it, of the last one first, if it fits then.
    """
    actions: list[Preempt | Start] = []
    worst: list[tuple[Key, str]] | None = None  # who ranks behind the first that does not fit
    idle = state.idle()
    for job in state.pending:
        grants = consolidated(job, state.cluster, idle)
        if grants is None:
            mine = rank(job, state.standing(job.job_id))
            if worst is None:
                worst = sorted(_behind(mine, state, rank), reverse=True)
            found = _in_place_of(
                [who for rank_of, who in worst if rank_of > mine], job, state, idle
            )
            if found is None:
                break
            grants, out = found
            actions += [Preempt(victim) for _, victim in worst[:out]]
            worst = worst[out:]
        actions.append(Start(job.job_id, grants))
    return actions


def _in_place_of(
    victims: Iterable[str], job: Job, state: State, idle: IdleDevices
) -> tuple[tuple[Grant, ...], int] | None:
    """Grants for a job with the devices of the first victims, and of how many; None if not so.

    They are given to ``idle``, and the job's taken from it.
    """
    for out, victim in enumerate(victims, 1):
        idle.give([grant.device for grant in state.standing(victim).grants])
        grants = consolidated(job, state.cluster, idle)
        if grants is not None:
            return grants, out
    return None


def _behind(
    mine: Key, state: State, rank: Callable[[Job, Standing], Key]
) -> Iterator[tuple[Key, str]]:
    for job_id, standing in state.running.items():
        theirs = rank(state.job(job_id), standing)
        if theirs > mine:
            yield theirs, job_id
