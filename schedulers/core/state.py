"""What a policy may know at a moment."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from typing import Protocol

from presage.schedulers.core.capacity.free_capacity import FreeCapacity
from presage.schedulers.core.capacity.idle_devices import IdleDevices
from presage.schedulers.core.capacity.shared_devices import Occupancy
from presage.schedulers.core.cluster import Cluster
from presage.schedulers.core.compute_usage import Usage
from presage.schedulers.core.job import Job
from presage.schedulers.core.job_status import JobStatus
from presage.schedulers.core.ledger import Ledger
from presage.schedulers.core.queue import QueueCursor
from presage.schedulers.core.reported_progress import Progress


class Pending(Protocol):
    """Jobs that wait, in the policy's order; to be looked at."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Job]: ...

    def first(self) -> Job | None:
        """The job that is served next; None of none."""
        ...

    def of_at_most(self, gpus: int) -> Iterator[Job]:
        """Jobs that need so few devices, in order."""
        ...

    def turns(self, workload_keys: Collection[Hashable] | None = None) -> QueueCursor:
        """All of them in order, or those of some shapes; others can be left out on the way."""
        ...

    def workload_keys(self, most: int) -> Collection[Hashable]:
        """Of jobs that need a single device; of more than ``most`` those that are served first."""
        ...

    def latency_sensitive_keys(self) -> Collection[Hashable]:
        """Of latency-sensitive jobs."""
        ...

    def one_of(self, workload_key: Hashable) -> Job:
        """A job of a shape."""
        ...


class Shared(Protocol):
    """Devices with jobs and with room for more, by who is there; to be looked at."""

    @property
    def known(self) -> Sequence[Occupancy]:
        """All companies that there were, as first seen; it grows, and once too long begins anew."""
        ...

    @property
    def devices(self) -> Mapping[Occupancy, int]:
        """Of each company the bits of the devices that have it, one at least."""
        ...

    @property
    def present(self) -> int:
        """Bits of the numbers of companies that devices have."""
        ...

    def occupancy(
        self, kind: str, compute_milli: int, memory_bytes: int, jobs: Sequence[Job]
    ) -> Occupancy:
        """The company of such jobs where so much is left."""
        ...


class State:
    """A cluster at a moment, to be looked at: nothing here changes it.

    It is made for one decision. What it gives out to be changed (``idle``, ``capacity``) are
    copies.

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
        """Its nodes and devices."""
        return self._ledger.cluster

    @property
    def pending(self) -> Pending:
        """Jobs that wait, in the policy's order."""
        return self._ledger.pending

    @property
    def running(self) -> Mapping[str, JobStatus]:
        """How the running jobs stand, by id, in the order in which they came to run."""
        return self._ledger.running

    @property
    def reserved(self) -> Mapping[str, JobStatus]:
        """How the jobs stand that keep devices until they have enough, by id."""
        return self._ledger.reserved

    @property
    def paused(self) -> Mapping[str, JobStatus]:
        """How the jobs stand that were stopped where they are, by id."""
        return self._ledger.paused

    @property
    def idle_count(self) -> int:
        """How many devices nobody is on."""
        return self._ledger.idle.count

    @property
    def down(self) -> frozenset[int]:
        """Nodes that failed and are not repaired."""
        return self._ledger.down

    @property
    def shared(self) -> Shared:
        """Devices that have compute left beside jobs, by who is there."""
        return self._ledger.shared

    def job(self, job_id: str) -> Job:
        """A job that was submitted, without kinds of devices whose memory is too small for it."""
        return self._ledger.jobs[job_id]

    def status(self, job_id: str) -> JobStatus:
        """How a job stands."""
        return self._ledger.status(job_id)

    def on(self, device: int) -> tuple[str, ...]:
        """Jobs that hold a part of a device, by id."""
        return self._ledger.on(device)

    def progress(self, job_id: str) -> float:
        """Part of its iterations that a job reports as done, within [0, 1]."""
        return self._progress.at(job_id, self.now_s)

    def pace_s(self, job_id: str) -> float:
        """Seconds that all of a job would take as it runs now; 0 where nobody can tell."""
        return self._progress.pace_s(job_id)

    def least_pace_s(self, job_id: str) -> float:
        """As ``pace_s``, of a job that is as fast as what was measured may mean."""
        return self._progress.least_pace_s(job_id)

    def unsaved_s(self, job_id: str) -> float:
        """Seconds of work that a job has done since it saved; infinite where nobody can tell."""
        return self._progress.unsaved_s(job_id, self.now_s)

    def usage_milli(self, job_id: str) -> float:
        """Thousandths of a device that each member of a job kept busy of late, paused or not."""
        return self._usage.at(job_id, self.now_s)

    def idle(self) -> IdleDevices:
        """Devices that nobody is on: a copy, to take from."""
        return self._ledger.idle.copy()

    def capacity(self) -> FreeCapacity:
        """What is left of every device: a copy, to take from."""
        return self._ledger.capacity.copy()
