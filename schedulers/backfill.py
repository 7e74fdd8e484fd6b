"""First in, first out, with backfilling: who holds nobody up may overtake."""

from __future__ import annotations

import heapq
import math
from random import Random

from presage.schedulers.action import Start
from presage.schedulers.fifo import Fifo
from presage.schedulers.forecasts import Forecasts
from presage.schedulers.idle_devices import IdleDevices
from presage.schedulers.job import Job
from presage.schedulers.placing import consolidated
from presage.schedulers.state import State

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
            grants = consolidated(job, state.cluster, idle)
            if grants is None:
                head = job
                break
            actions.append(Start(job.job_id, grants))
        if head is None or not idle.count:
            return actions
        at_s, kept = self._reservation(head, state, forecasts, idle, actions)
        if at_s == math.inf:
            return actions
        past, looked = {head.job_id, *(start.job_id for start in actions)}, 0
        elsewhere = idle.copy()  # where the head will not be
        elsewhere.take([device for device in kept if elsewhere.has(device)])
        urgent = state.cluster.devices + 1  # of latency-sensitive jobs passed over, the smallest
        for job in state.pending.of_at_most(idle.count):
            if job.job_id in past:
                continue
            looked += 1
            if looked > DEPTH or not idle.count:
                break
            if not job.latency_sensitive and job.gpus >= urgent:
                continue  # best effort never goes where a latency-sensitive job would fit
            in_time = state.now_s + forecasts.runtime_s(job) <= at_s
            free, other = (idle, elsewhere) if in_time else (elsewhere, idle)
            grants = consolidated(job, state.cluster, free)
            if grants is not None:
                other.take([grant.device for grant in grants if other.has(grant.device)])
                actions.append(Start(job.job_id, grants))
            elif job.latency_sensitive:
                urgent = min(urgent, job.gpus)
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
        ends = []
        for job_id, standing in state.running.items():
            left = 1.0 - state.progress(job_id)
            seconds = left * foretold_s(
                state.job(job_id), standing.grants[0].device, state, forecasts
            )
            ends.append((state.now_s + seconds, job_id, standing.grants))
        for start in started:
            seconds = foretold_s(state.job(start.job_id), start.grants[0].device, state, forecasts)
            ends.append((state.now_s + seconds, start.job_id, start.grants))
        free = idle.copy()
        heapq.heapify(ends)
        size, node_of = state.cluster.largest_node, state.cluster.node_of
        least = head.gpus % size or size  # idle devices of a node that can make a difference
        while ends and ends[0][0] < math.inf:
            end_s, _, grants = heapq.heappop(ends)
            free.give([grant.device for grant in grants])
            if free.count >= head.gpus and any(free.on(node_of[g.device]) >= least for g in grants):
                found = consolidated(head, state.cluster, free)
                if found is not None:
                    return end_s, frozenset(grant.device for grant in found)
        return math.inf, frozenset()


def foretold_s(job: Job, device: int, state: State, forecasts: Forecasts) -> float:
    """Run time of a whole job on the kind of a device."""
    return forecasts.outlook(job, state.cluster.kind_of(device)).runtime_s
