"""Placement of the sizes that the policy ``elastic`` chose: which jobs get which devices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from presage.schedulers.core.action import Action, Preempt, Resize, Start, Wake
from presage.schedulers.core.allocation import Allocation
from presage.schedulers.core.capacity.consolidation import place_consolidated
from presage.schedulers.core.capacity.resource_requests import gang_size
from presage.schedulers.core.job import Job
from presage.schedulers.core.speedup import fewest_nodes
from presage.schedulers.core.state import State
from presage.schedulers.policies.elastic.contender import Contender
from presage.schedulers.policies.elastic.device_choice import (
    choose_devices,
    fastest_devices,
    nodes_of,
)
from presage.schedulers.policies.elastic.occupants import Occupants
from presage.schedulers.policies.elastic.replacement import place_instead_of
from presage.schedulers.policies.elastic.sizes import Demand


class Placement:
    """Actions that lead from the present devices of jobs to their sizes.

    Parameters
    ----------
    sizes : sequence of int
        Number of devices of each contender; 0 for one that has to wait.
    hold_s, gain : float
        As in :class:`presage.schedulers.policies.elastic.elastic_policy.Elastic`.
    """

    def __init__(
        self,
        state: State,
        contenders: Sequence[Contender],
        sizes: Sequence[int],
        *,
        hold_s: float,
        gain: float,
    ) -> None:
        self._state, self._cluster = state, state.cluster
        self._hold_s, self._gain = hold_s, gain
        self._occupants = Occupants(
            state.idle(), ((one.job.job_id, one.own) for one in contenders if one.own)
        )
        self._idle = self._occupants.idle
        self._released: list[Action] = []
        self._placed: list[tuple[Contender, Action, int]] = []  # with its number of new devices
        self._wake_s = math.inf
        self._sizes = dict(zip((one.job.job_id for one in contenders), sizes, strict=True))
        self._in_order = sorted(
            contenders,
            key=lambda one: (one.demand.rank, -_first_density(one.demand), one.job.job_id),
        )
        self._evicted: set[str] = set()

    def actions(self) -> list[Action]:
        """Return the actions, those that free devices first."""
        self._place()
        placed = self._without_overtaking()
        return [*self._released, *placed, *self._wakes()]

    def _place(self) -> None:
        """Evict and shrink jobs, then start and grow others on devices that are idle."""
        kept: list[Contender] = []
        for one in self._in_order:
            target = self._sizes[one.job.job_id]
            if not one.own:
                continue
            if target == 0:
                self._evict(one)
            elif target < len(one.own):
                kept.append(self._shrink(one, target))
            else:
                kept.append(one)
        running = {one.job.job_id: one for one in kept}
        for one in self._in_order:
            if one.job.job_id in self._evicted:
                continue
            if not one.own:
                self._start(one, self._sizes[one.job.job_id], running)
            elif one.is_resizable and self._sizes[one.job.job_id] >= len(one.own):
                self._grow(one)

    def _wakes(self) -> list[Action]:
        return [Wake(self._wake_s)] if self._wake_s < math.inf else []

    def _evict(self, one: Contender) -> None:
        self._released.append(Preempt(one.job.job_id))
        self._evicted.add(one.job.job_id)
        self._occupants.leave(one.job.job_id, one.own)

    def _shrink(self, one: Contender, target: int) -> Contender:
        nothing_idle = self._idle.copy()
        nothing_idle.take([d for d in range(self._cluster.devices) if nothing_idle.is_idle(d)])
        own = sorted(one.own, key=self._occupants.is_shared)
        kept = choose_devices(target, own, nothing_idle, self._cluster, 0) or one.own
        self._occupants.leave(one.job.job_id, {*one.own} - {*kept})
        self._released.append(Resize(one.job.job_id, self._allocations(kept)))
        return replace(one, own=kept)

    def _start(self, one: Contender, target: int, running: dict[str, Contender]) -> None:
        if not target:
            return
        if not one.is_resizable:
            self._start_rigid(one, running)
            return
        devices = self._fastest(one, one.own, range(one.job.fewest_gpus, target + 1))
        if devices is not None:
            self._occupants.join(one.job.job_id, devices)
            start = Start(one.job.job_id, self._allocations(devices))
            self._placed.append((one, start, len(devices)))

    def _start_rigid(self, one: Contender, running: dict[str, Contender]) -> None:
        """Start a job of a fixed size; it may take the devices of jobs of a lower rank."""
        allocations = place_consolidated(one.job, self._cluster, self._idle)
        if allocations is None:
            behind = self._in_order[self._in_order.index(one) + 1 :]
            others = (running.get(other.job.job_id) for other in reversed(behind))
            may_leave = (held for held in others if held is not None and self._may_leave(held))
            allocations, leaving = place_instead_of(
                one.job, may_leave, self._occupants, self._cluster
            )
            for held in leaving:
                self._drop_resize(held)
                self._evict(held)
        if allocations:
            self._occupants.join(one.job.job_id, (each.device for each in allocations))
            self._placed.append((one, Start(one.job.job_id, allocations), len(allocations)))

    def _may_leave(self, one: Contender) -> bool:
        job_id = one.job.job_id
        is_placed = any(other.job.job_id == job_id for other, _, _ in self._placed)
        return job_id not in self._evicted and not is_placed

    def _drop_resize(self, one: Contender) -> None:
        self._released = [
            action
            for action in self._released
            if not (isinstance(action, Resize) and action.job_id == one.job.job_id)
        ]

    def _grow(self, one: Contender) -> None:
        """Give a job more devices, or devices on fewer nodes, if it gains speed by it."""
        target = self._sizes[one.job.job_id]
        nodes = nodes_of(one.own, self._cluster)
        largest = self._cluster.nodes_of(one.job.kinds).largest
        shared = [device for device in one.own if self._occupants.is_shared(device)]
        is_compact = nodes <= fewest_nodes(len(one.own), largest)
        if target <= len(one.own) and is_compact and not shared:
            return
        held_until_s = one.status.since_s + self._hold_s
        if self._state.now_s < held_until_s:
            self._wake_s = min(self._wake_s, held_until_s)
            return
        devices = self._larger(one, target, shared)
        if devices is None or {*devices} == {*one.own}:
            return
        now_s = one.speed.run_s((len(one.own), nodes)) * self._slowdown(one, one.own)
        then_s = one.speed.run_s((len(devices), nodes_of(devices, self._cluster)))
        if not then_s * self._slowdown(one, devices) * (1 + self._gain) <= now_s:
            return
        self._occupants.join(one.job.job_id, {*devices} - {*one.own})
        self._occupants.leave(one.job.job_id, {*one.own} - {*devices})
        resize = Resize(one.job.job_id, self._allocations(devices))
        self._placed.append((one, resize, len({*devices} - {*one.own})))

    def _larger(self, one: Contender, target: int, shared: Sequence[int]) -> list[int] | None:
        """Return devices with which a job grows, in place of shared ones if there are enough."""
        if shared:
            exclusive = [device for device in one.own if device not in shared]
            devices = self._fastest(one, exclusive, range(len(one.own), target + 1))
            if devices is not None:
                return devices
        return self._fastest(one, one.own, range(one.job.fewest_gpus, target + 1))

    def _fastest(self, one: Contender, own: Sequence[int], sizes: range) -> list[int] | None:
        return fastest_devices(one, own, sizes, self._idle, self._cluster)

    def _slowdown(self, one: Contender, devices: Sequence[int]) -> float:
        """Return the predicted slowdown of a job by the jobs with which it shares devices."""
        del one, devices
        return 1.0

    def _waiting_urgent(self) -> list[Job]:
        """Return the latency-sensitive jobs that wait after this decision."""
        starting = {one.job.job_id for one, _, _ in self._placed if not one.own}
        return [
            *(job for job in self._state.latency_sensitive.values() if job.job_id not in starting),
            *(
                one.job
                for one in self._in_order
                if one.job.job_id in self._evicted and one.job.latency_sensitive
            ),
        ]

    def _is_blocked(self, other_devices: int = 0) -> bool:
        """Return whether starts and growths of best-effort jobs delay a waiting urgent job.

        Parameters
        ----------
        other_devices : int
            Number of devices that are not idle and that an urgent job might use.
        """
        usable = self._idle.count + other_devices
        usable += sum(new for one, _, new in self._placed if not one.job.latency_sensitive)
        return any(gang_size(job, self._cluster) <= usable for job in self._waiting_urgent())

    def _without_overtaking(self) -> list[Action]:
        """Return starts and growths, best-effort ones only if they delay no waiting urgent job."""
        blocked = self._is_blocked()
        return [
            action for one, action, _ in self._placed if one.job.latency_sensitive or not blocked
        ]

    def _allocations(self, devices: Sequence[int]) -> tuple[Allocation, ...]:
        full = self._cluster.full_allocations
        return tuple(full[device] for device in sorted(devices))


def _first_density(demand: Demand) -> float:
    return demand.increments[0].density / max(demand.left, 1e-6) if demand.increments else 0.0
