"""First in, first out."""

from __future__ import annotations

from random import Random

from presage.schedulers.core.action import Start
from presage.schedulers.core.capacity.requests import members
from presage.schedulers.core.forecasts import Forecasts
from presage.schedulers.core.job import Job
from presage.schedulers.core.job_status import JobStatus
from presage.schedulers.core.queue import Key, priority_key
from presage.schedulers.core.state import State
from presage.schedulers.policies.placement import consolidated


class Fifo:
    """Start jobs in the order of their arrival; one that does not fit holds up all behind it."""

    def key(self, job: Job, status: JobStatus, forecasts: Forecasts) -> Key:
        """By arrival, within a class and a priority."""
        return (*priority_key(job), job.submit_s)

    def decide(self, state: State, forecasts: Forecasts, rng: Random) -> list[Start]:
        """Start whoever is at the head, and fits."""
        return start_in_order(state)


def start_in_order(state: State) -> list[Start]:
    """Whole devices for the jobs at the head of the queue, until one does not fit."""
    actions: list[Start] = []
    if state.idle_count == 0 or (first := state.pending.first()) is None:
        return actions
    cluster = state.cluster
    if members(first, cluster) > state.idle_count:
        return actions
    idle = state.idle()
    for job in state.pending:
        allocations = consolidated(job, cluster, idle)
        if allocations is None:
            break
        actions.append(Start(job.job_id, allocations))
    return actions
