"""Best-effort jobs on devices, as a decision goes on to change their allocations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

from presage.schedulers.core.action import Action, Preempt, Resize
from presage.schedulers.core.allocation import Allocation
from presage.schedulers.core.capacity.free_capacity import FreeCapacity
from presage.schedulers.core.state import State
from presage.schedulers.policies.sharing.reclaim import Release, Tenant


class BestEffortJobs:
    """Best-effort jobs from which devices, or parts of them, can be reclaimed.

    Parameters
    ----------
    capacity : FreeCapacity
        Free capacity; reclaimed capacity is added to it.
    least_milli : int
        Least compute that a job keeps.
    """

    def __init__(self, state: State, capacity: FreeCapacity, least_milli: int) -> None:
        self._state, self._capacity, self._least_milli = state, capacity, least_milli
        self._changed: dict[str, Allocation] = {}
        self._evicted: set[str] = set()
        self._on_device: dict[int, list[Tenant]] = {}  # a cache

    def allocation_of(self, job_id: str) -> Allocation | None:
        """Return the present allocation of a single-device job; None if it was evicted."""
        if job_id in self._evicted:
            return None
        return self._changed.get(job_id) or self._state.status(job_id).allocations[0]

    @property
    def changed(self) -> list[str]:
        """Jobs that the decision has shrunk, grown or evicted."""
        return [
            *self._changed,
            *(job_id for job_id in self._evicted if job_id not in self._changed),
        ]

    def on_device(self, device: int) -> list[Tenant]:
        """Return the best-effort jobs that run on a device."""
        found = self._on_device.get(device)
        if found is None:
            found = self._on_device[device] = self._tenants(device)
        return found

    def _tenants(self, device: int) -> list[Tenant]:
        return [
            self._tenant(job_id, device)
            for job_id in self._state.jobs_on(device)
            if job_id not in self._evicted
            and job_id in self._state.running
            and not self._state.job(job_id).latency_sensitive
        ]

    @cached_property
    def allocated(self) -> FreeCapacity:
        """Capacity of every device that best-effort jobs held when the decision began."""
        return self._state.best_effort()

    def carry_out(self, found: Release, device: int) -> Iterator[Action]:
        """Yield the actions of a release on a device."""
        for job_id in found.evicted:
            yield self.evict(job_id)
        for job_id, compute_milli in found.shrunk:
            yield self.change(job_id, compute_milli)

    def evict(self, job_id: str) -> Preempt:
        """Return the eviction of a job: it saves its state and returns to the queue."""
        allocations = self._allocations(job_id)
        self._capacity.give(allocations)
        self._evicted.add(job_id)
        for allocation in allocations:
            self._on_device.pop(allocation.device, None)
        return Preempt(job_id)

    def change(self, job_id: str, compute_milli: int) -> Resize:
        """Return the change of a job's share of its device."""
        (allocation,) = self._allocations(job_id)
        self._capacity.compute_milli[allocation.device] += allocation.compute_milli - compute_milli
        self._on_device.pop(allocation.device, None)
        self._changed[job_id] = other = allocation._replace(compute_milli=compute_milli)
        return Resize(job_id, (other,))

    def _allocations(self, job_id: str) -> Sequence[Allocation]:
        changed = self._changed.get(job_id)
        return (changed,) if changed else self._state.status(job_id).allocations

    def _tenant(self, job_id: str, device: int) -> Tenant:
        job, allocations = self._state.job(job_id), self._allocations(job_id)
        allocation = next(a for a in allocations if a.device == device)
        status, costs = self._state.status(job_id), job.checkpointing
        unsaved_s = min(
            status.seconds_since_start(self._state.now_s),
            self._state.unsaved_s(job_id),
            costs.interval_s,
        )
        lost_s = (unsaved_s + costs.cost_s + costs.restart_s) * len(allocations)
        # A gang runs as fast as its slowest member: shrinking one would waste the others' compute.
        least = self._least_milli if len(allocations) == 1 else allocation.compute_milli
        return Tenant(job_id, allocation.compute_milli, allocation.memory_bytes, least, lost_s)
