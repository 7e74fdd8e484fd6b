"""Starting jobs by rank, where a better one may take the devices of a worse one."""

from __future__ import annotations

from collections.abc import Callable

from presage.schedulers.action import Preempt, Start
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
    if not len(state.pending):
        return actions
    idle = state.idle()
    worst = sorted(
        ((rank(state.job(job_id), standing), job_id) for job_id, standing in state.running.items()),
        reverse=True,
    )
    for job in state.pending:
        free = idle.copy()
        grants = consolidated(job, state.cluster, free)
        out = 0
        if grants is None:
            mine = rank(job, state.standing(job.job_id))
            freed = idle.copy()
            for theirs, victim in worst:
                if theirs <= mine:
                    break
                out += 1
                freed.give([grant.device for grant in state.standing(victim).grants])
                free = freed.copy()
                grants = consolidated(job, state.cluster, free)
                if grants is not None:
                    break
        if grants is None:
            break
        actions += [Preempt(victim) for _, victim in worst[:out]]
        actions.append(Start(job.job_id, grants))
        worst, idle = worst[out:], free
    return actions
