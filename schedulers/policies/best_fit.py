"""Best fit: whoever fits may start, where the least is left over."""

from __future__ import annotations

from collections.abc import Hashable
from random import Random

from presage.schedulers.core.action import Start
from presage.schedulers.core.forecasts import Forecasts
from presage.schedulers.core.state import State
from presage.schedulers.policies.fifo import Fifo
from presage.schedulers.policies.placement import consolidated
from presage.schedulers.policies.priority_guard import PriorityGuard


class BestFit(Fifo):
    """Whole devices by arrival, on the fullest node; who does not fit is passed over.

    Small jobs never wait for large ones, and a large gang may wait for as long as they come.
    """

    def decide(self, state: State, forecasts: Forecasts, rng: Random) -> list[Start]:
        """Start all that fit."""
        actions: list[Start] = []
        if not state.idle_count or not len(state.pending):
            return actions
        idle, turns, passed_over = state.idle(), state.pending.turns(), PriorityGuard(state)
        unfit: set[Hashable] = set()
        for job in turns:
            if job.request in unfit:
                turns.skip()
                continue
            allocations = consolidated(job, state.cluster, idle)
            if allocations is not None and passed_over.blocks(job, allocations):
                idle.give([allocation.device for allocation in allocations])
                allocations = None
            if allocations is None:
                passed_over.add(job)
                turns.skip()
                unfit.add(job.request)
                continue
            actions.append(Start(job.job_id, allocations))
            if not idle.count:
                break
        return actions
