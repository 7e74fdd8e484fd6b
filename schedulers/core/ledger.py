"""Ledger of a cluster: the only place where job status changes, in the simulator and live.

Every change is checked against the invariants of a cluster:

- allocations do not exceed a device's compute or memory, and a device that is down has none;
- a gang runs with no members, or with as many as it needs;
- every submitted job is in exactly one phase;
- no reservation outlives its expiry;
- while a latency-sensitive job waits, no best-effort job starts where it would fit;
- no action lets a user hold more than its quota.

A batch of actions is a transaction: all of them are applied, or none.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

from presage.errors import ImpossibleActionError
from presage.schedulers.core.action import (
    Action,
    Migrate,
    Pause,
    Preempt,
    Reject,
    Reserve,
    Resize,
    Resume,
    Start,
    Wake,
)
from presage.schedulers.core.allocation import FULL_DEVICE_MILLI, Allocation
from presage.schedulers.core.capacity.free_capacity import FreeCapacity
from presage.schedulers.core.capacity.idle_devices import IdleDevices
from presage.schedulers.core.capacity.resource_requests import (
    fitting_devices,
    gang_size,
    satisfies_request,
)
from presage.schedulers.core.capacity.shared_devices import SharedDevices
from presage.schedulers.core.capacity.task_slots import check_tasks
from presage.schedulers.core.cluster import Cluster
from presage.schedulers.core.failures.outage_history import OutageHistory
from presage.schedulers.core.job import Job
from presage.schedulers.core.job_status import ENDED, WAITING, JobStatus, Phase
from presage.schedulers.core.queue import Queue
from presage.schedulers.core.reports.change_log import ChangeLog
from presage.schedulers.core.users.fair_queue import FairQueue
from presage.schedulers.core.users.quota import devices_text
from presage.schedulers.core.users.quota_gate import QuotaGate


class Change(NamedTuple):
    """Change of a job's status."""

    job: Job
    before: JobStatus
    after: JobStatus


class Ledger:
    """Jobs of a cluster with their status, and the free capacity of every device.

    Policies read it through :class:`presage.schedulers.core.state.State`.

    Parameters
    ----------
    ageing_s : float
        Waiting time after which a best-effort job may precede latency-sensitive jobs.
    outages : OutageHistory, optional
        Earlier outages; failures and repairs are added to it.
    device_ids : sequence of str, optional
        Id of each device in the history; their names in the cluster by default.
    gate : QuotaGate, optional
        Jobs of the users that have a quota.

    Attributes
    ----------
    jobs : mapping of str to Job
        All submitted jobs by id, ended ones included. Kinds of devices with too little memory are
        removed from them.
    held_milli : dict of str to int
        Compute that the jobs of each user hold, in thousandths of a device.
    idle : IdleDevices
        Devices without jobs that are up.
    capacity : FreeCapacity
        Free capacity of every device.
    best_effort : FreeCapacity
        Capacity of every device that running best-effort jobs hold.
    shared : SharedDevices
        Devices with jobs and free compute, by occupancy.
    was_shared : bool
        Whether two jobs have ever been on one device.
    changes : ChangeLog
        Jobs whose status has changed.
    outages : OutageHistory
        Outages of the devices up to now.
    device_ids : sequence of str
        Id of each device in ``outages``.
    """

    def __init__(
        self,
        cluster: Cluster,
        pending: Queue,
        *,
        ageing_s: float = math.inf,
        outages: OutageHistory | None = None,
        device_ids: Sequence[str] | None = None,
        gate: QuotaGate | None = None,
    ) -> None:
        self.cluster, self._pending, self.ageing_s = cluster, pending, ageing_s
        self.gate = gate
        self.held_milli: dict[str, int] = {}
        self.idle, self.capacity = IdleDevices(cluster), FreeCapacity.full(cluster)
        self.best_effort = FreeCapacity.none(cluster)
        self.shared = SharedDevices()
        self._jobs: dict[str, Job] = {}
        self.jobs: Mapping[str, Job] = MappingProxyType(self._jobs)
        self._statuses: dict[str, JobStatus] = {}
        self._running: dict[str, JobStatus] = {}
        self._run_numbers: dict[str, int] = {}  # of running jobs, in the order of _running
        self._runs = 0
        self.changes = ChangeLog()
        self._urgent: dict[str, Job] = {}  # pending latency-sensitive jobs
        self._jobs_on: list[tuple[str, ...]] = [()] * cluster.devices
        self._reserved: dict[str, JobStatus] = {}
        self._paused: dict[str, JobStatus] = {}
        self._down: set[int] = set()
        self._failed: set[int] = set()
        self.outages = OutageHistory() if outages is None else outages
        self._device_ids = device_ids
        self.was_shared = False
        if gate is not None:
            gate.connect(self._jobs, self._open, self._close)

    # Queries --------------------------------------------------------------------------------

    @property
    def pending(self) -> Queue:
        """Pending jobs in the policy's order, without those that wait for their user's quota."""
        if self.gate is not None:
            self.gate.admit()
        return self._pending

    @property
    def running(self) -> Mapping[str, JobStatus]:
        """Status of the running jobs by id, in the order in which they started."""
        return MappingProxyType(self._running)

    def run_number(self, job_id: str) -> int:
        """Return a number of a running job that grows in the order of ``running``."""
        return self._run_numbers[job_id]

    def status(self, job_id: str) -> JobStatus:
        """Return the status of a submitted job."""
        return self._statuses[job_id]

    def jobs_on(self, device: int) -> tuple[str, ...]:
        """Return the ids of the jobs that hold a part of a device."""
        return self._jobs_on[device]

    @property
    def latency_sensitive(self) -> Mapping[str, Job]:
        """Pending latency-sensitive jobs by id, without those that hold reservations."""
        if self.gate is not None:
            self.gate.admit()
        return MappingProxyType(self._urgent)

    @property
    def reserved(self) -> Mapping[str, JobStatus]:
        """Status of the jobs that hold reservations, by id."""
        return MappingProxyType(self._reserved)

    @property
    def paused(self) -> Mapping[str, JobStatus]:
        """Status of the paused jobs by id."""
        return MappingProxyType(self._paused)

    @property
    def down(self) -> frozenset[int]:
        """Nodes that have failed and are not repaired yet."""
        return frozenset(self._down)

    @property
    def failed_devices(self) -> frozenset[int]:
        """Devices that have failed by themselves and are not repaired yet."""
        return frozenset(self._failed)

    def is_down(self, device: int) -> bool:
        """Return whether a device or its node is down."""
        return device in self._failed or self.cluster.node_of[device] in self._down

    @property
    def device_ids(self) -> Sequence[str]:
        """Id of each device in the history of outages."""
        if self._device_ids is None:
            self._device_ids = tuple(map(self.cluster.name_of, range(self.cluster.devices)))
        return self._device_ids

    @property
    def busy(self) -> int:
        """Number of devices with running or paused jobs; reservations do not count."""
        busy = self.cluster.devices - self.idle.count
        if self._down:
            busy -= sum(len(self.cluster.devices_of(node)) for node in self._down)
        if self._failed:
            busy -= sum(self.cluster.node_of[device] not in self._down for device in self._failed)
        if self._reserved:
            reserved = {
                allocation.device
                for status in self._reserved.values()
                for allocation in status.allocations
            }
            busy -= sum(
                all(one in self._reserved for one in self._jobs_on[device]) for device in reserved
            )
        return busy

    # Events of the cluster ------------------------------------------------------------------

    def extend(self, cluster: Cluster, device_ids: Sequence[str]) -> None:
        """Add nodes without jobs after the present ones, whose devices keep their numbers.

        Parameters
        ----------
        cluster : Cluster
            The present cluster, with the new nodes at its end.
        device_ids : sequence of str
            Id of each device of ``cluster`` in the history of outages.
        """
        self._jobs_on += [()] * (cluster.devices - self.cluster.devices)
        self.idle.extend(cluster)
        self.capacity.extend(cluster)
        self.best_effort.extend(cluster, is_free=False)
        self.cluster, self._device_ids = cluster, device_ids

    def submit(self, job: Job, now_s: float, too_small: Collection[str] = ()) -> str:
        """Add a job to the queue, or reject it if it can never run.

        Parameters
        ----------
        too_small : collection of str
            Kinds of devices to avoid because of their memory, if the job can run without them.

        Returns
        -------
        str
            Reason for the rejection; "" if there is none.

        Raises
        ------
        ImpossibleActionError
            A job with that id was submitted before.
        """
        self._check_new(job)
        why = self._unschedulable_reason(job)
        if self.gate is not None and not why:
            why = self.gate.why_never(job, JobStatus(Phase.PENDING, now_s))
        return self._submit(job, now_s, too_small, why)

    def _submit(self, job: Job, now_s: float, too_small: Collection[str], why: str) -> str:
        """Add a job, or with a reason an entry of its rejection; return the reason."""
        if job.memory_bytes and not why:
            memory_of = self.cluster.memory_of
            job = self._without_kinds(
                job, [k for k in memory_of if memory_of[k] < job.memory_bytes]
            )
        if too_small and not why and not {*too_small}.issuperset(job.kinds or self.cluster.kinds):
            kept = self._without_kinds(job, too_small)
            job = job if self._unschedulable_reason(kept) else kept
        self._jobs[job.job_id] = job
        phase = Phase.REJECTED if why else Phase.PENDING
        self._statuses[job.job_id] = status = JobStatus(phase, now_s)
        if not why:
            self._enqueue(job, status)
        return why

    def _check_new(self, job: Job) -> None:
        if job.job_id in self._jobs:
            raise ImpossibleActionError(
                f"job {job.job_id!r} was submitted before; give every job an id of its own"
            )

    def adopt(self, job: Job, status: JobStatus, too_small: Collection[str] = ()) -> str:
        """Add a job with the status that it had earlier; parameters and result as :meth:`submit`.

        A job that needs more than its user's quota is added: the quota may have been larger.

        Raises
        ------
        ImpossibleActionError
            Its allocations are not available, or a job with that id exists. The ledger is
            unchanged then.
        """
        self._check_new(job)
        why = self._unschedulable_reason(job)
        self._submit(job, status.since_s, too_small, why)
        if not why:
            before = self._statuses[job.job_id]
            try:
                self._set_status(self._jobs[job.job_id], before, status)
            except ImpossibleActionError:
                self._dequeue(self._jobs[job.job_id])
                if self.gate is not None:
                    self.gate.forget(job)
                del self._jobs[job.job_id], self._statuses[job.job_id]
                raise
        return why

    def sync(self, job: Job, status: JobStatus, too_small: Collection[str] = ()) -> str:
        """Enter a job as it was observed, in place of what the ledger knows of it.

        Return why it cannot be entered: it can never run here, or its devices are not free. Then
        the ledger does not contain the job. ``too_small`` is as in :meth:`submit`.
        """
        if job.job_id in self._jobs:
            self.forget(job.job_id)
        try:
            why = self.adopt(job, status, too_small)
        except ImpossibleActionError as error:
            return str(error)
        if why:
            self.forget(job.job_id)
        return why

    def forget(self, job_id: str) -> None:
        """Remove a job entirely and free its allocations."""
        status = self._statuses[job_id]
        if status.phase not in ENDED:
            over = status._replace(phase=Phase.FINISHED, allocations=())
            self._set_status(self._jobs[job_id], status, over)
        self._pending.forget(job_id)
        del self._jobs[job_id], self._statuses[job_id]

    def rank_users(self, use: Mapping[str, float]) -> None:
        """Set the use of users that a queue by fair share orders their jobs by."""
        if isinstance(self._pending, FairQueue):
            self._pending.use = use

    def replace_queue(self, pending: Queue) -> None:
        """Replace the queue while no job is pending."""
        self._pending = pending

    def end(self, job_id: str, phase: Phase, now_s: float) -> Change:
        """Move a running job to a final phase: finished, or failed for good."""
        return self._transition(self._jobs[job_id], phase, now_s, ())

    def exclude(self, job_id: str, kind: str) -> str:
        """Exclude a kind of device with too little memory from a running job's next starts.

        Returns
        -------
        str
            Reason why the job can never run again; "" if it can.
        """
        job = self._jobs[job_id]
        if {kind}.issuperset(job.kinds or self.cluster.kinds):
            return f"the job does not fit into the memory of {kind}"
        job = self._without_kinds(job, [kind])
        why = self._unschedulable_reason(job)
        if not why:
            self._jobs[job_id] = job
        return why

    def requeue(self, job_id: str, now_s: float, *, overflow: bool = False) -> Change:
        """Return a running or paused job to the queue, after a failure or a memory overflow."""
        return self._transition(self._jobs[job_id], Phase.PENDING, now_s, (), overflow=overflow)

    def expire(self, now_s: float) -> list[Change]:
        """Release expired reservations; their jobs are pending again."""
        if not self._reserved:
            return []
        over = [job_id for job_id, held in self._reserved.items() if held.until_s <= now_s]
        return [self._transition(self._jobs[job_id], Phase.PENDING, now_s, ()) for job_id in over]

    def fail(
        self, node: int, now_s: float, device: int | None = None, *, is_outage: bool = True
    ) -> list[Change]:
        """Mark a node, or one of its devices, as down: jobs there return to the queue.

        A running elastic job continues on its other devices if they are enough for it.

        Parameters
        ----------
        is_outage : bool
            Whether to add an outage to the history. It has none for a device that is down for
            maintenance, and the live controller's history has the outages already.
        """
        if device is None:
            if node in self._down:
                return []
            lost = [one for one in self.cluster.devices_of(node) if one not in self._failed]
        else:
            if device in self._failed:
                return []
            lost = [] if node in self._down else [device]
        changes = self._withdraw(lost, now_s, is_outage=is_outage)
        if device is None:
            self._down.add(node)
        else:
            self._failed.add(device)
        return changes

    def _withdraw(self, devices: Sequence[int], now_s: float, *, is_outage: bool) -> list[Change]:
        """Withdraw the capacity of devices and of the jobs on them."""
        hit = dict.fromkeys(job_id for device in devices for job_id in self._jobs_on[device])
        changes = [
            self._transition(self._jobs[job_id], Phase.RUNNING, now_s, survivors)
            if (survivors := self._survivors(job_id, devices))
            else self.requeue(job_id, now_s)
            for job_id in hit
        ]
        self.idle.take(devices)
        self.capacity.take(self.cluster.full_allocations[device] for device in devices)
        for device in devices if is_outage else ():
            self.outages.record_failure(self.device_ids[device], now_s)
        return changes

    def _survivors(self, job_id: str, failed: Collection[int]) -> tuple[Allocation, ...]:
        """Return the allocations with which a running job continues; () if it cannot."""
        job, status = self._jobs[job_id], self._statuses[job_id]
        if status.phase is not Phase.RUNNING or not job.is_elastic:
            return ()
        left = tuple(one for one in status.allocations if one.device not in failed)
        return left if len(left) >= job.fewest_gpus else ()

    def repair(
        self, node: int, now_s: float, device: int | None = None, *, is_outage: bool = True
    ) -> None:
        """Mark a node, or one of its devices, as up again; ``is_outage`` is as in :meth:`fail`.

        A device is available once neither itself nor its node is down.
        """
        if device is None:
            if node not in self._down:
                return
            self._down.remove(node)
            restored = [one for one in self.cluster.devices_of(node) if one not in self._failed]
        else:
            if device not in self._failed:
                return
            self._failed.remove(device)
            restored = [] if node in self._down else [device]
        self.idle.give(restored)
        self.capacity.give(self.cluster.full_allocations[one] for one in restored)
        for one in restored if is_outage else ():
            self.outages.record_repair(self.device_ids[one], now_s)

    # Decisions of the policy ----------------------------------------------------------------

    def apply(self, actions: Sequence[Action], now_s: float) -> list[Change]:
        """Apply a batch of actions in order, after expired reservations are released.

        The releases stay if the batch is rejected: they follow only from the time.

        Raises
        ------
        ImpossibleActionError
            An action is invalid; the message names it and the reason. None is applied then.
        """
        order = tuple(self._running) if any(type(a) is not Start for a in actions) else ()
        expired = self.expire(now_s)
        changes: list[Change] = []
        try:
            for number, action in enumerate(actions, 1):
                if type(action) is Wake:
                    _check_time(action.at_s)
                else:
                    changes.append(self._apply_one(action, number, now_s))
            self._check_no_overtaking(changes)
            self._check_quotas(changes)
        except ImpossibleActionError:
            self._roll_back(changes, order)
            raise
        return expired + changes if expired else changes

    def _apply_one(self, action: Action, number: int, now_s: float) -> Change:
        assert not isinstance(action, Wake)
        if type(action) not in _TRANSITIONS:
            raise ImpossibleActionError(f"action {number}: expected an action, got {_name(action)}")
        if not isinstance(action.job_id, str):
            raise ImpossibleActionError(
                f"action {number}: expected a job id, got {_name(action.job_id)}"
            )
        job = self._jobs.get(action.job_id)
        allowed, after = _TRANSITIONS[type(action)]
        try:
            if job is None:
                raise ImpossibleActionError("there is no such job")
            status = self._statuses[job.job_id]
            if status.phase not in allowed:
                raise ImpossibleActionError(f"it is {status.phase}")
            until_s = math.inf
            if isinstance(action, _ALLOCATING):
                allocations = action.allocations
                if isinstance(action, Reserve):
                    until_s = _check_time(action.until_s)
                    if not now_s < until_s < math.inf:
                        raise ImpossibleActionError(
                            f"the reservation would expire at {until_s} s, must be later than now"
                        )
                self._check_gang(job, allocations, least=1 if isinstance(action, Reserve) else 0)
            else:
                allocations = status.allocations if after in _HOLDING else ()
            if isinstance(action, Reject) and not isinstance(action.why, str):
                raise ImpossibleActionError(f"reason: expected a str, got {_name(action.why)}")
            return self._transition(job, after, now_s, allocations, until_s=until_s)
        except ImpossibleActionError as error:
            raise ImpossibleActionError(
                f"action {number}, {type(action).__name__} of job {action.job_id!r}: {error}"
            ) from None

    def _check_gang(self, job: Job, allocations: Sequence[Allocation], *, least: int) -> None:
        if not isinstance(allocations, tuple):
            raise ImpossibleActionError(f"allocations: expected a tuple, got {_name(allocations)}")
        count = len(allocations)
        if count != job.gpus and not (least or job.fewest_gpus) <= count <= job.most_gpus:
            elastic = job.min_gpus or job.max_gpus
            needs = f"{job.fewest_gpus} to {job.most_gpus}" if elastic else f"{job.gpus}"
            raise ImpossibleActionError(f"the gang needs {needs} members, got {len(allocations)}")
        for allocation in allocations:
            if type(allocation) is not Allocation:
                raise ImpossibleActionError(f"expected an Allocation, got {_name(allocation)}")
            device, compute, memory = allocation
            if not (type(device) is type(compute) is type(memory) is int) or (
                not 0 <= device <= _INT64_MAX
                or not 1 <= compute <= _INT64_MAX
                or not 0 <= memory <= _INT64_MAX
            ):
                raise ImpossibleActionError(_allocation_problem(allocation))
            if device >= self.cluster.devices:
                raise ImpossibleActionError(f"there is no device {device}")
            if job.kinds and self.cluster.kind_of(device) not in job.kinds:
                raise ImpossibleActionError(
                    f"{self.cluster.name_of(device)} is a {self.cluster.kind_of(device)}, and the "
                    f"job runs on {', '.join(job.kinds)} only"
                )
        check_tasks(job, self.cluster, allocations)

    def _check_no_overtaking(self, changes: Sequence[Change]) -> None:
        """Check that no best-effort job overtakes a waiting latency-sensitive job.

        It does if a device that the batch gave to a best-effort job satisfies the waiting job's
        request, and such devices together with the free ones suffice for its gang.
        """
        if not self._urgent:
            return
        placed = {
            allocation: change.job
            for change in changes
            if not change.job.latency_sensitive
            and change.after.since_s < change.before.since_s + self.ageing_s
            and change.after.phase in (Phase.RUNNING, Phase.RESERVED)
            and self._statuses[change.job.job_id] is change.after
            for allocation in change.after.allocations
            if allocation not in change.before.allocations
        }
        if not placed:
            return
        for urgent in {job.request: job for job in self._urgent.values()}.values():
            taken = [
                allocation
                for allocation in placed
                if satisfies_request(allocation, urgent, self.cluster)
            ]
            usable = fitting_devices(urgent, self.cluster, self.capacity)
            usable[[allocation.device for allocation in taken]] = True
            if taken and usable.sum() >= gang_size(urgent, self.cluster):
                raise ImpossibleActionError(
                    f"best-effort job {placed[taken[0]].job_id!r} takes devices on which the "
                    f"waiting latency-sensitive job {urgent.job_id!r} would fit; "
                    "state.plan() builds decisions without such starts"
                )

    def _check_quotas(self, changes: Sequence[Change]) -> None:
        """Check that no user holds more than its quota, unless it held as much before."""
        if self.gate is None:
            return
        gained: dict[str, int] = {}
        for job, before, after in changes:
            gain = after.held_milli - before.held_milli
            gained[job.user] = gained.get(job.user, 0) + gain
        for user, gain in gained.items():
            limit = self.gate.quotas.devices_milli(user)
            if gain > 0 and limit is not None and self.held_milli[user] > limit:
                raise ImpossibleActionError(
                    f"user {user!r} would hold {devices_text(self.held_milli[user])}, and its "
                    f"quota is {devices_text(limit)}; start only jobs in state.pending"
                )

    # Bookkeeping ----------------------------------------------------------------------------

    def _unschedulable_reason(self, job: Job) -> str:
        """Return why a job can never run on this cluster; "" if it can."""
        if not job.kinds and not job.memory_bytes and job.fewest_gpus <= self.cluster.devices:
            return ""
        kinds = self.cluster.kinds
        unknown = [kind for kind in job.kinds if kind not in kinds]
        if job.kinds and len(unknown) == len(job.kinds):
            return f"the job runs on {', '.join(unknown)} only, and the cluster has no such device"
        usable = [kind for kind in kinds if not job.kinds or kind in job.kinds]
        memory_of = self.cluster.memory_of
        large = [kind for kind in usable if memory_of[kind] >= job.memory_bytes]
        if not large:
            return (
                f"the job requests {job.memory_bytes / 2**30:g} GiB of device memory, and devices "
                f"have at most {max(memory_of[kind] for kind in usable) / 2**30:g}"
            )
        there = sum(kinds[kind] for kind in large)
        if job.fewest_gpus > there:
            return f"the gang needs {job.fewest_gpus} devices, and the cluster has {there} for it"
        return ""

    def _without_kinds(self, job: Job, kinds: Collection[str]) -> Job:
        if not kinds:
            return job
        left = (kind for kind in job.kinds or self.cluster.kinds if kind not in kinds)
        return replace(job, kinds=tuple(left))

    def _transition(
        self,
        job: Job,
        phase: Phase,
        now_s: float,
        allocations: tuple[Allocation, ...],
        *,
        overflow: bool = False,
        until_s: float = math.inf,
    ) -> Change:
        """Move a job to a phase with allocations; raise, and change nothing, if impossible."""
        before, waits = self._statuses[job.job_id], phase in WAITING
        rolled_back = before.phase is Phase.RESERVED and phase is Phase.PENDING
        after = JobStatus(
            phase,
            now_s,
            allocations,
            before.attained_at(now_s),
            before.starts + (phase is Phase.RUNNING and before.phase in WAITING),
            before.overflows + overflow,
            before.waited_s + (now_s - before.since_s if before.phase in WAITING else 0.0),
            until_s,
            before.rollbacks + rolled_back,
            now_s if rolled_back else before.rolled_back_s,
            min(before.first_start_s, now_s) if phase is Phase.RUNNING else before.first_start_s,
            () if not waits else _devices_of(before) or before.previous_devices,
            before.attained_s
            if before.phase in WAITING and not waits
            else before.attained_at_start_s,
        )
        self._set_status(job, before, after)
        return Change(job, before, after)

    def _set_status(self, job: Job, before: JobStatus, after: JobStatus) -> None:
        job_id = job.job_id
        if before.phase in _HOLDING:
            self._release(job_id, before)
        if after.phase in _HOLDING:
            try:
                self._take_capacity(job_id, after)
            except ImpossibleActionError:
                if before.phase in _HOLDING:
                    self._take_capacity(job_id, before)
                raise
        self._statuses[job_id] = after
        self.changes.note(job_id)
        if before.phase is Phase.PENDING:
            self._dequeue(job)
        elif before.phase is Phase.RUNNING and after.phase is not Phase.RUNNING:
            del self._running[job_id], self._run_numbers[job_id]
        elif before.phase is Phase.RESERVED:
            del self._reserved[job_id]
        elif before.phase is Phase.PAUSED:
            del self._paused[job_id]
        if after.phase is Phase.PENDING:
            self._enqueue(job, after)
        elif after.phase is Phase.RUNNING:
            self._runs += 1
            self._run_numbers.setdefault(job_id, self._runs)
            self._running[job_id] = after
        elif after.phase is Phase.RESERVED:
            self._reserved[job_id] = after
        elif after.phase is Phase.PAUSED:
            self._paused[job_id] = after
        self._note_held(job, before, after)

    def _note_held(self, job: Job, before: JobStatus, after: JobStatus) -> None:
        """Note what a job holds now, of its user's quota and of the best-effort jobs' devices."""
        if not job.latency_sensitive:
            if before.phase is Phase.RUNNING:
                self.best_effort.take(before.allocations)
            if after.phase is Phase.RUNNING:
                self.best_effort.give(after.allocations)
        if before.allocations is not after.allocations:
            gain = after.held_milli - before.held_milli
            self.held_milli[job.user] = self.held_milli.get(job.user, 0) + gain
        if self.gate is not None and self.gate.limits(job):
            self.gate.note(self._jobs[job.job_id], after)

    def _enqueue(self, job: Job, status: JobStatus) -> None:
        if self.gate is not None and self.gate.limits(job):
            self.gate.add(self._jobs[job.job_id], status)  # in the queue once it is admitted
        else:
            self._open(job, status)

    def _dequeue(self, job: Job) -> None:
        """Remove a job that is not pending any more."""
        if self.gate is not None and self.gate.limits(job):
            self.gate.remove(job)
        else:
            self._close(job.job_id)

    def _open(self, job: Job, status: JobStatus) -> None:
        self._pending.add(job, status)
        if job.latency_sensitive:
            self._urgent[job.job_id] = job

    def _close(self, job_id: str) -> None:
        self._pending.remove(job_id)
        self._urgent.pop(job_id, None)

    def _take_capacity(self, job_id: str, status: JobStatus) -> None:
        """Take the allocations of a job; raise, and take none, if one is not available."""
        paused, capacity = status.phase is Phase.PAUSED, self.capacity
        taken: list[Allocation] = []
        idle: list[int] = []
        for allocation in status.allocations:
            device, compute, memory = allocation
            compute = 0 if paused else compute
            there = self._jobs_on[device]
            if (
                capacity.compute_milli[device] < compute
                or capacity.memory_bytes[device] < memory
                or job_id in there
            ):
                why = self._conflict(job_id, allocation, compute)
                self._return_capacity(job_id, taken, paused)
                raise ImpossibleActionError(why)
            capacity.compute_milli[device] -= compute
            capacity.memory_bytes[device] -= memory
            taken.append(allocation)
            if there:
                self._jobs_on[device] = tuple(sorted((*there, job_id)))
                self.was_shared = True
            else:
                self._jobs_on[device] = (job_id,)
                idle.append(device)
            if there or compute < FULL_DEVICE_MILLI:
                self._update_shared(device)
        self.idle.take(idle)

    def _return_capacity(
        self, job_id: str, allocations: Iterable[Allocation], paused: bool
    ) -> None:
        for device, compute, memory in allocations:
            self.capacity.compute_milli[device] += 0 if paused else compute
            self.capacity.memory_bytes[device] += memory
            self._jobs_on[device] = tuple(
                other for other in self._jobs_on[device] if other != job_id
            )
            if paused or compute < FULL_DEVICE_MILLI or self._jobs_on[device]:
                self._update_shared(device)

    def _update_shared(self, device: int) -> None:
        """Update the index of shared devices after a change of a device."""
        there, compute_milli = self._jobs_on[device], int(self.capacity.compute_milli[device])
        if there and compute_milli > 0:
            kind, memory_bytes = (
                self.cluster.kind_of(device),
                int(self.capacity.memory_bytes[device]),
            )
            jobs = [self._jobs[job_id] for job_id in there]
            self.shared.put(device, kind, compute_milli, memory_bytes, jobs)
        else:
            self.shared.remove(device)

    def _release(self, job_id: str, status: JobStatus) -> None:
        self._return_capacity(job_id, status.allocations, status.phase is Phase.PAUSED)
        self.idle.give(
            [
                allocation.device
                for allocation in status.allocations
                if not self._jobs_on[allocation.device]
            ]
        )

    def _conflict(self, job_id: str, allocation: Allocation, compute: int) -> str:
        device, name = allocation.device, self.cluster.name_of(allocation.device)
        if self.is_down(device):
            return f"{name} is down"
        if job_id in self._jobs_on[device]:
            return f"another member of the job is on {name}"
        left = int(self.capacity.compute_milli[device])
        if left < compute:
            return f"{name} has {left} thousandths of its compute left, not {compute}"
        memory = int(self.capacity.memory_bytes[device])
        return f"{name} has {memory} bytes of memory left, not {allocation.memory_bytes}"

    def _roll_back(self, changes: Sequence[Change], order: Iterable[str]) -> None:
        for job, before, after in reversed(changes):
            self._set_status(job, after, before)
        if order:  # restore the order in which the jobs started
            self._running = {job_id: self._running[job_id] for job_id in order}
            self._run_numbers = {job_id: number for number, job_id in enumerate(order)}


def _devices_of(status: JobStatus) -> tuple[int, ...]:
    """Return the devices that a running or paused job holds; none of another job."""
    return tuple(g.device for g in status.allocations) if status.phase in _STARTED else ()


def _check_time(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ImpossibleActionError(f"expected a time in seconds, got {_name(value)}")
    try:
        is_nan = math.isnan(value)
    except OverflowError:
        raise ImpossibleActionError("expected a time that fits into a float") from None
    if is_nan:
        raise ImpossibleActionError("expected a time in seconds, got nan")
    return value


def _name(value: object) -> str:
    """Return the name of a value's type; the value's own text may differ between runs."""
    return type(value).__name__


def _allocation_problem(allocation: Allocation) -> str:
    """Return why an allocation is invalid on any device."""
    for field, part in zip(Allocation._fields, allocation, strict=True):
        if type(part) is not int:
            return f"{field}: expected an int, got {_name(part)}"
        if abs(part) > _INT64_MAX:
            return f"{field} does not fit into 64 bits"
    if allocation.device < 0:
        return f"there is no device {allocation.device}"
    return (
        f"allocation of {allocation.compute_milli} thousandths and {allocation.memory_bytes} "
        "bytes, must be >= 1 and >= 0"
    )


_INT64_MAX = 2**63 - 1
_ALLOCATING = Reserve, Start, Resize, Migrate
_STARTED = frozenset({Phase.RUNNING, Phase.PAUSED})
_HOLDING = _STARTED | {Phase.RESERVED}
# For each action the phases in which a job may be, and the phase that follows.
_TRANSITIONS: dict[type[Action], tuple[frozenset[Phase], Phase]] = {
    Reserve: (WAITING, Phase.RESERVED),
    Start: (WAITING, Phase.RUNNING),
    Preempt: (_HOLDING, Phase.PENDING),
    Resize: (frozenset({Phase.RUNNING}), Phase.RUNNING),
    Migrate: (frozenset({Phase.RUNNING}), Phase.RUNNING),
    Pause: (frozenset({Phase.RUNNING}), Phase.PAUSED),
    Resume: (frozenset({Phase.PAUSED}), Phase.RUNNING),
    Reject: (frozenset({Phase.PENDING}), Phase.REJECTED),
}
