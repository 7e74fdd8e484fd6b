"""First in, first out, with backfilling: who holds nobody up may overtake."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable
from random import Random

from presage.schedulers.core.action import Start
from presage.schedulers.core.allocation import Allocation
from presage.schedulers.core.capacity.idle_devices import IdleDevices
from presage.schedulers.core.capacity.requests import members
from presage.schedulers.core.forecasts import Forecasts
from presage.schedulers.core.job import Job
from presage.schedulers.core.job_status import Phase
from presage.schedulers.core.state import State
from presage.schedulers.policies.fifo import Fifo
from presage.schedulers.policies.placement import consolidated
from presage.schedulers.policies.priority_guard import PriorityGuard

DEPTH = 100  # jobs behind the first that does not fit which are looked at


class Backfill(Fifo):
    """Start jobs by arrival; while the first that does not fit waits, let later ones go before it.

    By the forecasts of those that run, it is known when and where the waiting job can start. A
    later job may start now if it is foretold to be over by then, or goes elsewhere. Where that
    moment cannot be foretold, nobody overtakes.

    References
    ----------
    Lifka: The ANL/IBM SP Scheduling System, JSSPP 1995 (EASY).
    """

    def decide(self, state: State, forecasts: Forecasts, rng: Random) -> list[Start]:
        """Start whoever is at the head and fits, then whoever does not delay the next one."""
        actions: list[Start] = []
        idle, head = state.idle(), None
        for job in state.pending:
            allocations = consolidated(job, state.cluster, idle)
            if allocations is None:
                head = job
                break
            actions.append(Start(job.job_id, allocations))
        if head is None or not idle.count:
            return actions
        at_s, kept = self._reservation(head, state, forecasts, idle, actions)
        if at_s == math.inf:
            return actions
        past, looked = {head.job_id, *(start.job_id for start in actions)}, 0
        elsewhere = idle.copy()  # where the head will not be
        elsewhere.take([device for device in kept if elsewhere.has(device)])
        passed_over = PriorityGuard(state)
        passed_over.add(head)
        for job in state.pending.of_at_most(idle.count):
            if job.job_id in past:
                continue
            looked += 1
            if looked > DEPTH or not idle.count:
                break
            free, other = idle, elsewhere
            allocations = consolidated(job, state.cluster, free)
            if allocations is not None and end_s(job, allocations, state, forecasts) > at_s:
                # It would end too late where it fits best: it may only go where the head will not.
                free.give([allocation.device for allocation in allocations])
                free, other = elsewhere, idle
                allocations = consolidated(job, state.cluster, free)
            if allocations is not None and passed_over.blocks(job, allocations):
                free.give([allocation.device for allocation in allocations])
                allocations = None
            if allocations is None:
                passed_over.add(job)
                continue
            other.take(
                [allocation.device for allocation in allocations if other.has(allocation.device)]
            )
            actions.append(Start(job.job_id, allocations))
        return actions

    def _reservation(
        self,
        head: Job,
        state: State,
        forecasts: Forecasts,
        idle: IdleDevices,
        started: list[Start],
    ) -> tuple[float, frozenset[int]]:
        """When the head can start by the forecasts, and on which devices; never is infinite."""
        held = [(job_id, status.allocations) for job_id, status in state.running.items()]
        held += started
        ends = [
            (end_s(state.job(job_id), allocations, state, forecasts), job_id, allocations)
            for job_id, allocations in held
        ]
        free = idle.copy()
        heapq.heapify(ends)
        size, node_of = state.cluster.nodes_of(head.kinds).largest, state.cluster.node_of
        gang = members(head, state.cluster)
        least = gang if gang <= size else 1  # of a node, that can make a difference
        while ends and ends[0][0] < math.inf:
            ends_s, _, allocations = heapq.heappop(ends)
            free.give([allocation.device for allocation in allocations])
            if free.count >= gang and any(free.on(node_of[g.device]) >= least for g in allocations):
                found = consolidated(head, state.cluster, free)
                if found is not None:
                    return ends_s, frozenset(allocation.device for allocation in found)
        return math.inf, frozenset()


def end_s(job: Job, allocations: Iterable[Allocation], state: State, forecasts: Forecasts) -> float:
    """When a job is foretold to end that runs on these devices, or is started there now.

    With its periodic checkpoints, and what it owes if it was started before; on fewer devices than
    it asks for in proportion.
    """
    allocations = tuple(allocations)
    kinds = {state.cluster.kind_of(allocation.device) for allocation in allocations}
    costs, status = job.checkpointing, state.status(job.job_id)
    runtime_s = max(forecasts.prediction(job, kind).runtime_s for kind in kinds)
    runtime_s *= job.gpus / len(allocations) * (1 + costs.cost_s / costs.interval_s)
    left_s = (1.0 - state.progress(job.job_id)) * runtime_s
    runs = status.phase is Phase.RUNNING
    owed_s = costs.cost_s + costs.restart_s if status.starts > runs else 0.0
    begins_s = status.since_s + owed_s if runs else state.now_s + owed_s
    return max(state.now_s, begins_s) + left_s
