"""Builder of decisions: starts and preemptions that the ledger accepts.

The ledger rejects a decision by which a best-effort job overtakes a latency-sensitive job: it gets
devices that the waiting job would fit on. A policy cannot see this in the order of its queue alone,
since free devices count wherever they are. The builder refuses such a start.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Protocol

from presage.schedulers.core.action import Action, Preempt, Start
from presage.schedulers.core.allocation import Allocation
from presage.schedulers.core.capacity.consolidation import place_consolidated
from presage.schedulers.core.capacity.free_capacity import FreeCapacity
from presage.schedulers.core.capacity.idle_devices import IdleDevices
from presage.schedulers.core.capacity.resource_requests import (
    fitting_devices,
    gang_size,
    satisfies_request,
)
from presage.schedulers.core.cluster import Cluster
from presage.schedulers.core.job import Job
from presage.schedulers.core.job_status import WAITING, JobStatus, Phase


class PlannedState(Protocol):
    """Part of the cluster state that a plan reads."""

    now_s: float

    @property
    def cluster(self) -> Cluster: ...  # noqa: D102

    @property
    def ageing_s(self) -> float: ...  # noqa: D102

    @property
    def latency_sensitive(self) -> Mapping[str, Job]: ...  # noqa: D102

    def job(self, job_id: str) -> Job: ...  # noqa: D102

    def status(self, job_id: str) -> JobStatus: ...  # noqa: D102

    def jobs_on(self, device: int) -> tuple[str, ...]: ...  # noqa: D102

    def idle(self) -> IdleDevices: ...  # noqa: D102

    def capacity(self) -> FreeCapacity: ...  # noqa: D102


class Plan:
    """Actions of one decision, built against a copy of the free capacity.

    Attributes
    ----------
    actions : list of Action
        What ``decide`` returns. Append others, such as ``Wake``, as they are.
    capacity : FreeCapacity
        Free capacity of every device after the actions; read-only.
    """

    def __init__(self, state: PlannedState) -> None:
        self._state, self._cluster = state, state.cluster
        self._idle, self.capacity = state.idle(), state.capacity()
        self.actions: list[Action] = []
        self._preempted: set[str] = set()
        self._started: set[str] = set()
        self._holders: dict[int, set[str]] = {}  # of the devices that the plan has touched
        self._urgent = dict(state.latency_sensitive)  # still waiting after the actions
        # Free capacity as if this plan had started no best-effort job.
        self._contended = self.capacity.copy()
        self._overtaking: list[Allocation] = []  # of best-effort jobs that the plan starts
        self._fitting: list[Job] | None = None  # urgent jobs that fit into that capacity

    @property
    def idle_count(self) -> int:
        """Number of devices without jobs after the actions."""
        return self._idle.count

    def start(self, job: Job, allocations: tuple[Allocation, ...] | None = None) -> bool:
        """Start a waiting job if it fits and overtakes no latency-sensitive job; return whether.

        Parameters
        ----------
        allocations : tuple of Allocation, optional
            One for each member of the gang. By default the job gets exclusive devices on as few
            nodes as possible.
        """
        status = self._state.status(job.job_id)
        waits = status.phase in WAITING or job.job_id in self._preempted
        if not waits or job.job_id in self._started:
            return False
        held = () if job.job_id in self._preempted else status.allocations  # by a reservation
        self._free(job.job_id, held)
        chosen = allocations or place_consolidated(job, self._cluster, self._idle)
        if chosen is None or not self._fits(chosen) or self._overtakes(job, chosen):
            if chosen is not None and allocations is None:
                self._idle.give([allocation.device for allocation in chosen])
            self._hold(job.job_id, held)
            self._take_contended(held)
            return False
        self._hold(job.job_id, chosen)
        self._started.add(job.job_id)
        self._account(job, status, chosen)
        self.actions.append(Start(job.job_id, chosen))
        return True

    def preempt(self, job_id: str) -> bool:
        """Evict a job that holds devices back into the queue; return whether that is possible.

        It is impossible if a waiting latency-sensitive job would then fit on these devices together
        with those of a best-effort job that the plan has started.
        """
        status, job = self._state.status(job_id), self._state.job(job_id)
        if status.phase in (Phase.PENDING, *_ENDED) or job_id in self._preempted | self._started:
            return False
        held = tuple(_unpaused(status))
        self._free(job_id, held)
        if job.latency_sensitive:
            self._urgent[job_id] = job
        if self._overtaking and self._is_overtaken(self._overtaking):
            self._urgent.pop(job_id, None)
            self._hold(job_id, held)
            self._take_contended(held)
            return False
        self._preempted.add(job_id)
        self.actions.append(Preempt(job_id))
        return True

    # Capacity -------------------------------------------------------------------------------

    def _fits(self, allocations: Iterable[Allocation]) -> bool:
        left = self.capacity
        return all(
            left.compute_milli[device] >= compute and left.memory_bytes[device] >= memory
            for device, compute, memory in allocations
        )

    def _free(self, job_id: str, allocations: tuple[Allocation, ...]) -> None:
        self.capacity.give(allocations)
        self._contended.give(allocations)
        for device in {allocation.device for allocation in allocations}:
            holders = self._on(device)
            holders.discard(job_id)
            if not holders:
                self._idle.give([device])
        self._fitting = None if allocations else self._fitting

    def _hold(self, job_id: str, allocations: tuple[Allocation, ...]) -> None:
        self.capacity.take(allocations)
        for device in {allocation.device for allocation in allocations}:
            if self._idle.is_idle(device):
                self._idle.take([device])
            self._on(device).add(job_id)

    def _on(self, device: int) -> set[str]:
        if device not in self._holders:
            self._holders[device] = set(self._state.jobs_on(device))
        return self._holders[device]

    # Latency-sensitive jobs first -----------------------------------------------------------

    def _account(self, job: Job, status: JobStatus, allocations: tuple[Allocation, ...]) -> None:
        """Note which capacity latency-sensitive jobs could still have had."""
        self._urgent.pop(job.job_id, None)
        if self._may_overtake(job, status):
            self._take_contended(allocations)
        else:
            self._overtaking += allocations

    def _take_contended(self, allocations: tuple[Allocation, ...]) -> None:
        self._contended.take(allocations)
        self._fitting = None if allocations else self._fitting

    def _may_overtake(self, job: Job, status: JobStatus) -> bool:
        """Return whether a job is latency-sensitive or has waited longer than the ageing time."""
        aged = self._state.now_s >= status.since_s + self._state.ageing_s
        return job.latency_sensitive or (aged and job.job_id not in self._preempted)

    def _overtakes(self, job: Job, allocations: tuple[Allocation, ...]) -> bool:
        if not self._urgent or self._may_overtake(job, self._state.status(job.job_id)):
            return False
        return self._is_overtaken(allocations)

    def _is_overtaken(self, allocations: Iterable[Allocation]) -> bool:
        """Return whether an allocation is one that a waiting latency-sensitive job could have."""
        if self._fitting is None:
            distinct: dict[Hashable, Job] = {job.request: job for job in self._urgent.values()}
            self._fitting = [
                job
                for job in distinct.values()
                if fitting_devices(job, self._cluster, self._contended).sum()
                >= gang_size(job, self._cluster)
            ]
        return any(
            satisfies_request(held, one, self._cluster)
            for held in allocations
            for one in self._fitting
        )


def _unpaused(status: JobStatus) -> Iterable[Allocation]:
    """Yield the allocations of a job; those of a paused job have no compute."""
    for held in status.allocations:
        yield held._replace(compute_milli=0) if status.phase is Phase.PAUSED else held


_ENDED = (Phase.FINISHED, Phase.FAILED, Phase.REJECTED)
