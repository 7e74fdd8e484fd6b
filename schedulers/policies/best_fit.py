"""Best fit: every job that fits starts, on the node with the fewest idle devices."""

from __future__ import annotations

from collections.abc import Hashable
from random import Random

from presage.schedulers.core.action import Start
from presage.schedulers.core.capacity.consolidation import place_consolidated
from presage.schedulers.core.forecasts import Forecasts
from presage.schedulers.core.state import State
from presage.schedulers.policies.fifo import Fifo
from presage.schedulers.policies.priority_guard import PriorityGuard


class BestFit(Fifo):
    """Policy that starts jobs by arrival on the fullest node, and skips those that do not fit.

    Small jobs never wait for large ones; a large gang may starve while small jobs keep arriving.
    """

    def decide(self, state: State, forecasts: Forecasts, rng: Random) -> list[Start]:
        """Start all jobs that fit."""
        actions: list[Start] = []
        if not state.idle_count or not len(state.pending):
            return actions
        idle, cursor, guard = state.idle(), state.pending.cursor(), PriorityGuard(state)
        unfit: set[Hashable] = set()
        for job in cursor:
            if job.request in unfit:
                cursor.skip()
                continue
            allocations = place_consolidated(job, state.cluster, idle)
            if allocations is not None and guard.blocks(job, allocations):
                idle.give([allocation.device for allocation in allocations])
                allocations = None
            if allocations is None:
                guard.add(job)
                cursor.skip()
                unfit.add(job.request)
                continue
            actions.append(Start(job.job_id, allocations))
            if not idle.count:
                break
        return actions
