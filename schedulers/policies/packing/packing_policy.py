"""Packing by forecasts: jobs share devices by their predictions, not by their requests."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from presage.schedulers.core.action import Start
from presage.schedulers.core.capacity.consolidation import place_consolidated
from presage.schedulers.core.capacity.idle_devices import IdleDevices
from presage.schedulers.core.forecasts import Forecasts
from presage.schedulers.core.job import Job
from presage.schedulers.core.policy import PolicyNeeds
from presage.schedulers.core.state import State
from presage.schedulers.policies.node_draining import nearest_nodes
from presage.schedulers.policies.packing.compatibility import CompatibilityCache, Limits
from presage.schedulers.policies.packing.shared_capacity import SharedCapacity
from presage.schedulers.policies.priority_guard import PriorityGuard
from presage.schedulers.policies.shortest_first import ShortestFirst

MOST_SLOWDOWN = 1.5
MOST_MEMBERS = 2
DEPTH = 256  # workload keys of pending jobs that a decision considers


class Packing(ShortestFirst):
    """Policy that starts jobs by predicted run time and co-locates single-device jobs.

    A job is allocated its predicted upper bound of memory and its predicted median of compute. It
    gets an idle device if there is one. Otherwise it is co-located on the device where the largest
    predicted slowdown is smallest, if both resources are free there and no slowdown exceeds
    ``most_slowdown``. Gangs get exclusive devices.

    The first job that does not get the idle devices that it needs blocks all others that need idle
    devices; co-location goes on, except on the nodes that are drained for it. For a single job that
    cannot be co-located, since it has no forecast or ran out of memory before, one device is
    drained.

    Parameters
    ----------
    most_slowdown : float
        Largest predicted slowdown of any job on a device.
    most_members : int
        Largest number of jobs on a device.
    overcommit : float
        Factor by which predicted compute may exceed a device. At 1 the jobs of a device are
        predicted to need no more than it has; above 1, ``most_slowdown`` limits contention.
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
        self._compatibility = CompatibilityCache(self._limits)

    def decide(self, state: State, forecasts: Forecasts, rng: Random) -> list[Start]:
        """Start jobs on idle devices, then co-locate others."""
        if not len(state.pending):
            return []
        places = SharedCapacity(state, forecasts, self._limits)
        actions, idle, head = [], state.idle(), None
        for job in state.pending:
            allocations = place_consolidated(job, state.cluster, idle)
            if allocations is None:
                head = job
                break
            if job.gpus == 1 and not state.status(job.job_id).overflows:
                allocations = (places.place_on_idle(job, allocations[0]),)
            actions.append(Start(job.job_id, allocations))
        if head is not None:
            self._drain(head, state, idle, places)
        while places and len(actions) < len(state.pending):
            started = {start.job_id for start in actions}
            actions += self._co_locate(state, forecasts, places, started, head)
            if len(actions) == len(started) or self._limits.most_members <= 2:
                break  # else jobs may be co-located with those that were just co-located
        return actions

    def _co_locate(
        self,
        state: State,
        forecasts: Forecasts,
        places: SharedCapacity,
        started: set[str],
        head: Job | None,
    ) -> Iterator[Start]:
        """Yield starts of jobs that are co-located, as no idle devices are left."""
        pending = state.pending
        workload_keys = self._compatibility.evaluate(
            pending.workload_keys(DEPTH), state, places.present, places.occupancies, forecasts
        )
        # Places are kept for these as well, although they fit nowhere now.
        others = dict.fromkeys(
            [*pending.latency_sensitive_keys(), *([] if head is None else [head.workload_key])]
        )
        workload_keys += [
            workload_key for workload_key in others if workload_key not in workload_keys
        ]
        guard, cursor = PriorityGuard(state), pending.cursor(workload_keys)
        for job in cursor:
            if job.job_id in started:
                continue
            if state.status(job.job_id).overflows:
                guard.add(job)
                continue
            compatibility = self._compatibility.by_workload.get(job.workload_key)
            place = None if compatibility is None else places.best(compatibility)
            if place is None:
                if job is head and job.gpus == 1:
                    places.drain_one(job.kinds)
                guard.add(job)
                cursor.skip()
                continue
            device, occupancy = place
            if guard.blocks(job, (places.allocation(job, device),)):
                cursor.skip()  # it would be where a latency-sensitive job would fit
                continue
            yield Start(job.job_id, (places.co_locate(job, device, occupancy),))

    def _drain(self, head: Job, state: State, idle: IdleDevices, places: SharedCapacity) -> None:
        """Drain the nodes where the blocked job is closest to having its devices.

        No jobs start on these nodes, so the next decision finds the same nodes, with more idle
        devices.
        """
        if head.gpus == 1:
            if state.status(head.job_id).overflows:
                places.drain_one(head.kinds)
            return  # else it may be co-located
        places.drain(nearest_nodes(head, state, idle))
