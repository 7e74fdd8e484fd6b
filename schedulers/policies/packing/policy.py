"""Packing by forecasts: who shares a device is decided by what is foretold, not by requests."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from presage.schedulers.core.action import Start
from presage.schedulers.core.capacity.consolidation import consolidated
from presage.schedulers.core.capacity.idle_devices import IdleDevices
from presage.schedulers.core.forecasts import Forecasts
from presage.schedulers.core.job import Job
from presage.schedulers.core.policy import PolicyNeeds
from presage.schedulers.core.state import State
from presage.schedulers.policies.packing.compatibility import CompatibilityCache, Limits
from presage.schedulers.policies.packing.open_places import SharedCapacity
from presage.schedulers.policies.placement import nearest_nodes
from presage.schedulers.policies.priority_guard import PriorityGuard
from presage.schedulers.policies.shortest_first import ShortestFirst

MOST_SLOWDOWN = 1.5
MOST_MEMBERS = 2
DEPTH = 256  # workload keys of pending jobs that a decision considers


class Packing(ShortestFirst):
    """Shortest job first, where jobs of one device may share one.

    Memory is granted by its foretold upper bound, compute by its median: where both are left, and
    nobody there is foretold to become more than ``most_slowdown`` times as slow, a job may go
    beside others. It gets a device of its own as long as there are idle ones; then it goes where
    whoever is slowed most is slowed least. Gangs have whole devices. The first job that needs some
    and does not get them holds up all others that do, while jobs go on to be packed; but not on the
    nodes that are nearest to having them: these run dry for it. So does a device for the first job
    that needs a single one and suits nobody, because nothing is foretold of it, say, or which ran
    out of memory before: it is not packed again.

    Parameters
    ----------
    most_members : int
        Jobs on a device.
    overcommit : float
        How many times over a device's compute is granted: at 1 its jobs are foretold to need no
        more than there is; above, what they lose by taking turns is left to ``most_slowdown``.
    """

    needs = PolicyNeeds(
        allocation="predicted", most_slowdown=MOST_SLOWDOWN, most_members=MOST_MEMBERS
    )

    def __init__(
        self,
        most_slowdown: float = MOST_SLOWDOWN,
        most_members: int = MOST_MEMBERS,
        overcommit: float = 1.0,
    ) -> None:
        self._limits = Limits(most_slowdown, most_members, overcommit)
        self._limits.check("packing")
        self.needs = PolicyNeeds(allocation="predicted", **self._limits._asdict())
        self._neighbours = CompatibilityCache(self._limits)

    def decide(self, state: State, forecasts: Forecasts, rng: Random) -> list[Start]:
        """Start who has a device of its own, then who has a place beside others."""
        if not len(state.pending):
            return []
        places = SharedCapacity(state, forecasts, self._limits)
        actions, idle, head = [], state.idle(), None
        for job in state.pending:
            allocations = consolidated(job, state.cluster, idle)
            if allocations is None:
                head = job
                break
            if job.gpus == 1 and not state.status(job.job_id).overflows:
                allocations = (places.whole(job, allocations[0]),)
            actions.append(Start(job.job_id, allocations))
        if head is not None:
            self._run_dry(head, state, idle, places)
        while places and len(actions) < len(state.pending):
            started = {start.job_id for start in actions}
            actions += self._beside(state, forecasts, places, started, head)
            if len(actions) == len(started) or self._limits.most_members <= 2:
                break  # else there may be room beside those who went beside others
        return actions

    def _beside(
        self,
        state: State,
        forecasts: Forecasts,
        places: SharedCapacity,
        started: set[str],
        head: Job | None,
    ) -> Iterator[Start]:
        """Who goes beside others, as no more devices are to be had."""
        pending = state.pending
        workload_keys = self._neighbours.look(
            pending.workload_keys(DEPTH), state, places, forecasts
        )
        # Places are kept for these, too, though they have none now.
        others = dict.fromkeys(
            [*pending.latency_sensitive_keys(), *([] if head is None else [head.workload_key])]
        )
        workload_keys += [
            workload_key for workload_key in others if workload_key not in workload_keys
        ]
        passed_over, turns = PriorityGuard(state), pending.turns(workload_keys)
        for job in turns:
            if job.job_id in started:
                continue
            if state.status(job.job_id).overflows:
                passed_over.add(job)
                continue
            neighbour = self._neighbours.of.get(job.workload_key)
            place = None if neighbour is None else places.best(neighbour)
            if place is None:
                if job is head and job.gpus == 1:
                    places.spare_one(job.kinds)
                passed_over.add(job)
                turns.skip()
                continue
            device, occupancy = place
            if passed_over.blocks(job, (places.part(job, device),)):
                turns.skip()  # it would be where a latency-sensitive job would fit
                continue
            yield Start(job.job_id, (places.beside(job, device, occupancy),))

    def _run_dry(self, head: Job, state: State, idle: IdleDevices, places: SharedCapacity) -> None:
        """Keep others from where the first job that waits is nearest to having its devices.

        Where nobody new is put, idle devices become more: these nodes are the ones again next time.
        """
        if head.gpus == 1:
            if state.status(head.job_id).overflows:
                places.spare_one(head.kinds)
            return  # else it may have a place beside others
        places.spare(nearest_nodes(head, state, idle))
