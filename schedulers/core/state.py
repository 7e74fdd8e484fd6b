"""Cluster state as policies see it."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from presage.schedulers.core.capacity.free_capacity import FreeCapacity
from presage.schedulers.core.capacity.idle_devices import IdleDevices
from presage.schedulers.core.capacity.shared_devices import Occupancy
from presage.schedulers.core.cluster import Cluster
from presage.schedulers.core.failures.outage_history import OutageHistory
from presage.schedulers.core.job import Job
from presage.schedulers.core.job_status import JobStatus
from presage.schedulers.core.ledger import Ledger
from presage.schedulers.core.plan import Plan
from presage.schedulers.core.queue import QueueCursor
from presage.schedulers.core.reports.change_log import ChangeLog
from presage.schedulers.core.reports.compute_usage import Usage
from presage.schedulers.core.reports.reported_progress import Progress
from presage.system.arrays import Array


class Pending(Protocol):
    """Read-only view of the pending jobs, in the policy's order."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Job]: ...

    def first(self) -> Job | None:
        """Return the job at the head of the queue; None if the queue is empty."""
        ...

    def jobs_up_to(self, gpus: int) -> Iterator[Job]:
        """Return the jobs that need at most ``gpus`` devices, in order."""
        ...

    def cursor(self, workload_keys: Collection[Hashable] | None = None) -> QueueCursor:
        """Return a cursor over all jobs, or over the jobs of some workload keys, in order."""
        ...

    def workload_keys(self, most: int) -> Collection[Hashable]:
        """Return the workload keys of single-device jobs, at most ``most``: the first in order."""
        ...

    def latency_sensitive_keys(self) -> Collection[Hashable]:
        """Return the workload keys of latency-sensitive jobs."""
        ...

    def representative(self, workload_key: Hashable) -> Job:
        """Return a job that has a workload key."""
        ...


class Shared(Protocol):
    """Read-only view of devices with jobs and free capacity, grouped by occupancy."""

    @property
    def occupancies(self) -> Sequence[Occupancy]:
        """All occupancies so far, in order of appearance; reset once there are too many."""
        ...

    @property
    def devices(self) -> Mapping[Occupancy, int]:
        """Bit set of the devices of each occupancy; never empty."""
        ...

    @property
    def present(self) -> int:
        """Bit set of the numbers of occupancies that devices have now."""
        ...

    def occupancy(
        self, kind: str, compute_milli: int, memory_bytes: int, jobs: Sequence[Job]
    ) -> Occupancy:
        """Return the occupancy of a device with these jobs and this free capacity."""
        ...


class ChangeMark(NamedTuple):
    """Point in the changes of a cluster's jobs.

    Attributes
    ----------
    logs : tuple of ChangeLog
        Logs of statuses, progress and use.
    numbers : tuple of int
        Number of the next entry of each.
    """

    logs: tuple[ChangeLog, ...]
    numbers: tuple[int, ...]


class State:
    """Read-only snapshot of a cluster for one decision.

    Objects that a policy may modify (``plan``, ``idle``, ``capacity``) are copies.

    Attributes
    ----------
    now_s : float
        Seconds since the beginning of the trace, or of the cluster.
    """

    __slots__ = ("_ledger", "_progress", "_usage", "now_s")

    def __init__(
        self, ledger: Ledger, now_s: float, progress: Progress, usage: Usage | None = None
    ) -> None:
        self._ledger, self.now_s = ledger, now_s
        self._progress, self._usage = progress, usage or Usage()

    @property
    def cluster(self) -> Cluster:
        """Nodes and devices."""
        return self._ledger.cluster

    @property
    def pending(self) -> Pending:
        """Pending jobs, in the policy's order."""
        return self._ledger.pending

    @property
    def held_back(self) -> Sequence[Job]:
        """Pending jobs that wait for their user's quota; they are not in ``pending``."""
        gate = self._ledger.gate
        return () if gate is None else tuple(gate.closed())

    @property
    def latency_sensitive(self) -> Mapping[str, Job]:
        """Pending latency-sensitive jobs by id, without those that hold reservations."""
        return self._ledger.latency_sensitive

    @property
    def ageing_s(self) -> float:
        """Waiting time after which a best-effort job may precede latency-sensitive jobs."""
        return self._ledger.ageing_s

    @property
    def running(self) -> Mapping[str, JobStatus]:
        """Status of the running jobs by id, in the order in which they started."""
        return self._ledger.running

    @property
    def reserved(self) -> Mapping[str, JobStatus]:
        """Status of the jobs that hold reservations, by id."""
        return self._ledger.reserved

    @property
    def paused(self) -> Mapping[str, JobStatus]:
        """Status of the paused jobs by id."""
        return self._ledger.paused

    @property
    def idle_count(self) -> int:
        """Number of devices without jobs."""
        return self._ledger.idle.count

    @property
    def down(self) -> frozenset[int]:
        """Nodes that have failed and are not repaired yet."""
        return self._ledger.down

    @property
    def failed_devices(self) -> frozenset[int]:
        """Devices that have failed by themselves; other devices of their nodes may be up."""
        return self._ledger.failed_devices

    def is_down(self, device: int) -> bool:
        """Return whether a device or its node is down."""
        return self._ledger.is_down(device)

    @property
    def outages(self) -> OutageHistory:
        """Outages of devices up to now, by ``device_ids``; policies only read it."""
        return self._ledger.outages

    @property
    def device_ids(self) -> Sequence[str]:
        """Id of each device in ``outages``."""
        return self._ledger.device_ids

    @property
    def shared(self) -> Shared:
        """Devices that have jobs and free compute, by occupancy."""
        return self._ledger.shared

    def job(self, job_id: str) -> Job:
        """Return a submitted job; kinds of devices with too little memory are removed from it."""
        return self._ledger.jobs[job_id]

    def status(self, job_id: str) -> JobStatus:
        """Return the status of a job."""
        return self._ledger.status(job_id)

    def jobs_on(self, device: int) -> tuple[str, ...]:
        """Return the ids of the jobs that hold a part of a device."""
        return self._ledger.jobs_on(device)

    def progress(self, job_id: str) -> float:
        """Return the fraction of its iterations that a job reports as done, within [0, 1]."""
        return self._progress.at(job_id, self.now_s)

    def progress_line(self, job_id: str) -> tuple[float, float, float]:
        """Return a fraction, a time and a rate from which :meth:`progress` follows until a report.

        It is ``min(1, fraction + max(0, now - time) * rate)``.
        """
        return self._progress.line(job_id)

    def progress_of(self, job_ids: Iterable[str]) -> Array:
        """Return :meth:`progress` of several jobs, of shape (jobs,)."""
        return self._progress.of_jobs(job_ids, self.now_s)

    def pace_s(self, job_id: str) -> float:
        """Return the run time of the whole job at its present speed; 0 if unknown."""
        return self._progress.pace_s(job_id)

    def paces_s(self, job_id: str) -> Mapping[tuple[int, int], float]:
        """Return the measured run times of the whole job, by numbers of devices and nodes.

        They are reported of elastic jobs, for the sizes that they have had.
        """
        return self._progress.paces_s(job_id)

    def least_pace_s(self, job_id: str) -> float:
        """Return the shortest run time of the whole job that its measured speed allows."""
        return self._progress.least_pace_s(job_id)

    def unsaved_s(self, job_id: str) -> float:
        """Return the seconds of work since a job's last checkpoint; infinite if unknown."""
        return self._progress.unsaved_s(job_id, self.now_s)

    def copy_progress(self) -> Progress:
        """Return a copy of the reported progress of all jobs."""
        return self._progress.copy()

    def usage_milli(self, job_id: str) -> float:
        """Return the recent mean compute use of a job's members, in thousandths of a device.

        Time during which the job was paused counts.
        """
        return self._usage.at(job_id, self.now_s)

    def most_usage_milli(self, job_id: str) -> float:
        """Return the largest :meth:`usage_milli` that is possible without another report."""
        return self._usage.most(job_id)

    def last_reports(self, job_id: str) -> tuple[object, object]:
        """Return the last reports of a job's progress and use: the same objects until others."""
        return self._progress.last_report(job_id), self._usage.last_report(job_id)

    def run_number(self, job_id: str) -> int:
        """Return a number of a running job that grows in the order of ``running``."""
        return self._ledger.run_number(job_id)

    def mark(self) -> ChangeMark:
        """Return a mark of the present, for :meth:`changed_since`."""
        logs = self._ledger.changes, self._progress.changes, self._usage.changes
        return ChangeMark(logs, tuple(log.end for log in logs))

    def changed_since(self, mark: ChangeMark) -> set[str] | None:
        """Return the jobs whose status or reports have changed; None if that is unknown."""
        changed: set[str] = set()
        for log, earlier, number in zip(self.mark().logs, *mark, strict=True):
            entries = log.since(number) if log is earlier else None
            if entries is None:
                return None
            changed.update(entries)
        return changed

    def plan(self) -> Plan:
        """Return a builder of actions that the ledger accepts."""
        return Plan(self)

    def idle(self) -> IdleDevices:
        """Return a copy of the set of devices without jobs."""
        return self._ledger.idle.copy()

    def capacity(self) -> FreeCapacity:
        """Return a copy of the free capacity of every device."""
        return self._ledger.capacity.copy()

    def best_effort(self) -> FreeCapacity:
        """Return a copy of the capacity of every device that running best-effort jobs hold."""
        return self._ledger.best_effort.copy()
