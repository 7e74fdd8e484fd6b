"""First in, first out."""

from __future__ import annotations

from random import Random

from presage.schedulers.core.action import Start
from presage.schedulers.core.capacity.consolidation import place_consolidated
from presage.schedulers.core.capacity.resource_requests import gang_size
from presage.schedulers.core.forecasts import Forecasts
from presage.schedulers.core.policy import Policy
from presage.schedulers.core.state import State


class Fifo(Policy):
    """Policy that starts jobs in order of arrival; a job that does not fit blocks those behind."""

    def decide(self, state: State, forecasts: Forecasts, rng: Random) -> list[Start]:
        """Start jobs from the head of the queue while they fit."""
        return start_in_order(state)


def start_in_order(state: State) -> list[Start]:
    """Return starts on exclusive devices from the head of the queue, until a job does not fit."""
    actions: list[Start] = []
    if state.idle_count == 0 or (first := state.pending.first()) is None:
        return actions
    cluster = state.cluster
    if gang_size(first, cluster) > state.idle_count:
        return actions
    idle = state.idle()
    for job in state.pending:
        allocations = place_consolidated(job, cluster, idle)
        if allocations is None:
            break
        actions.append(Start(job.job_id, allocations))
    return actions
