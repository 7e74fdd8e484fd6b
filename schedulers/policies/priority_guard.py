"""Priority guard: keeps best-effort jobs from overtaking latency-sensitive ones.

It serves policies that build actions themselves; ``state.plan()`` includes such a check.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import cached_property

from presage.schedulers.core.allocation import Allocation
from presage.schedulers.core.capacity.free_capacity import FreeCapacity
from presage.schedulers.core.capacity.resource_requests import (
    fitting_devices,
    gang_size,
    satisfies_request,
)
from presage.schedulers.core.job import Job
from presage.schedulers.core.state import State


class PriorityGuard:
    """Latency-sensitive jobs that a decision skipped although enough devices are free for them.

    Best-effort jobs must not get these devices, even if the policy would not place the skipped job
    there, such as a gang that it keeps on one node.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._waiting: dict[Hashable, Job] = {}  # by request
        self._jobs: list[Job] = []

    def add(self, job: Job) -> None:
        """Add a job that was not started; best-effort jobs are ignored."""
        if job.latency_sensitive and job.request not in self._waiting:
            self._waiting[job.request] = job
            if self._fits(job, self._capacity):
                self._jobs.append(job)

    def _fits(self, job: Job, capacity: FreeCapacity) -> bool:
        cluster = self._state.cluster
        return bool(fitting_devices(job, cluster, capacity).sum() >= gang_size(job, cluster))

    @cached_property
    def _capacity(self) -> FreeCapacity:
        return self._state.capacity()

    def blocks(
        self, job: Job, allocations: tuple[Allocation, ...], given_back: tuple[Allocation, ...] = ()
    ) -> bool:
        """Return whether a start is forbidden.

        Parameters
        ----------
        given_back : tuple of Allocation
            Reserved devices that the start frees.
        """
        if job.latency_sensitive:
            return False
        jobs = self._jobs
        if given_back:
            capacity = self._capacity.copy()
            capacity.give(given_back)
            jobs = [other for other in self._waiting.values() if self._fits(other, capacity)]
        return any(
            satisfies_request(allocation, other, self._state.cluster)
            for allocation in allocations
            for other in jobs
        )
