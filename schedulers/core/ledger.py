"""What is where: the one place where a job's standing changes, in the simulator and live.

Every change is checked against the invariants of a cluster:

- no device's compute or memory is held beyond what it has, and nothing of one that is down;
- a gang runs with 0 members, or with as many as it needs;
- every submitted job is in exactly one phase;
- no reservation outlives its expiry;
- while a latency-sensitive job waits, no best-effort job is put where it would fit.

A batch of actions is a transaction: all of them are done, or none.
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
from presage.schedulers.core.capacity.requests import covers, members, suitable
from presage.schedulers.core.capacity.shared_devices import SharedDevices
from presage.schedulers.core.capacity.task_slots import check_tasks
from presage.schedulers.core.cluster import Cluster
from presage.schedulers.core.job import Job
from presage.schedulers.core.job_status import ENDED, WAITING, JobStatus, Phase
from presage.schedulers.core.queue import Queue


class Change(NamedTuple):
    """How a job stood, and how it stands now."""

    job: Job
    before: JobStatus
    after: JobStatus


class Ledger:
    """Jobs of a cluster, how each stands, and what is left of every device.

    Policies see it through :class:`presage.schedulers.core.state.State`.

    Parameters
    ----------
    ageing_s : float
        A best-effort job that has waited so long may go before latency-sensitive ones.

    Attributes
    ----------
    jobs : mapping of str to Job
        All that were submitted, by id, ended ones too; without the kinds of devices whose memory
        is too small for them.
    pending : Queue
        Jobs that wait, in the policy's order.
    idle : IdleDevices
        Devices that nobody is on, of nodes that are up.
    capacity : FreeCapacity
        What is left of every device.
    shared : SharedDevices
        Devices with jobs and with room, by who is there.
    was_shared : bool
        Whether two jobs ever were on a device.
    """

    def __init__(self, cluster: Cluster, pending: Queue, *, ageing_s: float = math.inf) -> None:
        self.cluster, self.pending, self.ageing_s = cluster, pending, ageing_s
        self.idle, self.capacity = IdleDevices(cluster), FreeCapacity.of(cluster)
        self.shared = SharedDevices()
        self._jobs: dict[str, Job] = {}
        self.jobs: Mapping[str, Job] = MappingProxyType(self._jobs)
        self._statuses: dict[str, JobStatus] = {}
        self._running: dict[str, JobStatus] = {}
        self._urgent: dict[str, Job] = {}  # latency-sensitive jobs that wait
        self._on: list[tuple[str, ...]] = [()] * cluster.devices
        self._reserved: dict[str, JobStatus] = {}
        self._paused: dict[str, JobStatus] = {}
        self._down: set[int] = set()
        self.was_shared = False

    # Looking --------------------------------------------------------------------------------

    @property
    def running(self) -> Mapping[str, JobStatus]:
        """Of the jobs that run, by id, in the order in which they came to run."""
        return MappingProxyType(self._running)

    def status(self, job_id: str) -> JobStatus:
        """Of a job that was submitted."""
        return self._statuses[job_id]

    def on(self, device: int) -> tuple[str, ...]:
        """Jobs that hold a part of a device, by id."""
        return self._on[device]

    @property
    def latency_sensitive(self) -> Mapping[str, Job]:
        """Pending latency-sensitive jobs by id, without those that hold reservations."""
        return MappingProxyType(self._urgent)

    @property
    def reserved(self) -> Mapping[str, JobStatus]:
        """Of the jobs that keep devices until they have enough, by id."""
        return MappingProxyType(self._reserved)

    @property
    def paused(self) -> Mapping[str, JobStatus]:
        """Of the jobs that were stopped where they are, by id."""
        return MappingProxyType(self._paused)

    @property
    def down(self) -> frozenset[int]:
        """Nodes that failed and are not repaired."""
        return frozenset(self._down)

    @property
    def busy(self) -> int:
        """How many devices somebody is on; those that are only reserved do not count."""
        busy = self.cluster.devices - self.idle.count
        if self._down:
            busy -= sum(len(self.cluster.devices_of(node)) for node in self._down)
        if self._reserved:
            kept = {
                allocation.device
                for held in self._reserved.values()
                for allocation in held.allocations
            }
            busy -= sum(all(one in self._reserved for one in self._on[device]) for device in kept)
        return busy

    # What the world does --------------------------------------------------------------------

    def submit(self, job: Job, now_s: float, too_small: Collection[str] = ()) -> str:
        """Take a job in: it waits, or is rejected if it can never run. Why, or "".

        It is kept from kinds of devices that are ``too_small`` for it, if it can run without them.

        Raises
        ------
        ImpossibleActionError
            A job of that id was submitted before.
        """
        if job.job_id in self._jobs:
            raise ImpossibleActionError(
                f"job {job.job_id!r} was submitted before; give every job an id of its own"
            )
        why = self._never(job)
        if job.memory_bytes and not why:
            memory_of = self.cluster.memory_of
            job = self._without(job, [k for k in memory_of if memory_of[k] < job.memory_bytes])
        if too_small and not why and not {*too_small}.issuperset(job.kinds or self.cluster.kinds):
            kept = self._without(job, too_small)
            job = job if self._never(kept) else kept
        self._jobs[job.job_id] = job
        phase = Phase.REJECTED if why else Phase.PENDING
        self._statuses[job.job_id] = status = JobStatus(phase, now_s)
        if not why:
            self._wait(job, status)
        return why

    def adopt(self, job: Job, status: JobStatus, too_small: Collection[str] = ()) -> str:
        """Take in a job that is known from before, as it stood then. Why it can never run, or "".

        ``too_small`` is as in :meth:`submit`.

        Raises
        ------
        ImpossibleActionError
            What it held is not there, or a job of that id is known. Then nothing was done.
        """
        why = self.submit(job, status.since_s, too_small)
        if not why:
            before = self._statuses[job.job_id]
            try:
                self._put(self._jobs[job.job_id], before, status)
            except ImpossibleActionError:
                self.pending.remove(job.job_id)
                self._urgent.pop(job.job_id, None)
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
        """Know nothing of a job any more; what it held is free."""
        status = self._statuses[job_id]
        if status.phase not in ENDED:
            over = status._replace(phase=Phase.FINISHED, allocations=())
            self._put(self._jobs[job_id], status, over)
        self.pending.forget(job_id)
        del self._jobs[job_id], self._statuses[job_id]

    def end(self, job_id: str, phase: Phase, now_s: float) -> Change:
        """A running job is over: finished, or failed for good."""
        return self._move(self._jobs[job_id], phase, now_s, ())

    def exclude(self, job_id: str, kind: str) -> str:
        """A running job is never again put on devices of a kind, which are too small for it.

        Why it can never run then, or "".
        """
        job = self._jobs[job_id]
        if {kind}.issuperset(job.kinds or self.cluster.kinds):
            return f"it does not fit into the memory of {kind}"
        job = self._without(job, [kind])
        why = self._never(job)
        if not why:
            self._jobs[job_id] = job
        return why

    def give_up(self, job_id: str, now_s: float, *, overflow: bool = False) -> Change:
        """A running or paused job lost its devices, perhaps by an overflow, and waits again."""
        return self._move(self._jobs[job_id], Phase.PENDING, now_s, (), overflow=overflow)

    def expire(self, now_s: float) -> list[Change]:
        """Reservations that are over: their jobs wait again without them."""
        if not self._reserved:
            return []
        over = [job_id for job_id, held in self._reserved.items() if held.until_s <= now_s]
        return [self._move(self._jobs[job_id], Phase.PENDING, now_s, ()) for job_id in over]

    def fail(self, node: int, now_s: float) -> list[Change]:
        """A node is down: who was on it waits again, and nobody is given its devices."""
        if node in self._down:
            return []
        devices = self.cluster.devices_of(node)
        hit = dict.fromkeys(job_id for device in devices for job_id in self._on[device])
        changes = [self.give_up(job_id, now_s) for job_id in hit]
        self.idle.take(devices)
        self.capacity.take(self.cluster.whole[device] for device in devices)
        self._down.add(node)
        return changes

    def repair(self, node: int) -> None:
        """A node is up again."""
        if node in self._down:
            devices = self.cluster.devices_of(node)
            self._down.remove(node)
            self.idle.give(devices)
            self.capacity.give(self.cluster.whole[device] for device in devices)

    # What a policy decides ------------------------------------------------------------------

    def apply(self, actions: Sequence[Action], now_s: float) -> list[Change]:
        """Do all of a batch, in order; reservations that are over expire before.

        Raises
        ------
        ImpossibleActionError
            One of them cannot be done; says which and why. Then nothing was done.
        """
        order = tuple(self._running) if any(type(a) is not Start for a in actions) else ()
        expired = self.expire(now_s)
        changes: list[Change] = []
        try:
            for number, action in enumerate(actions, 1):
                if type(action) is Wake:
                    _number(action.at_s)
                else:
                    changes.append(self._act(action, number, now_s))
            self._check_urgency(changes)
        except ImpossibleActionError:
            self._undo(changes, order)
            raise
        return expired + changes if expired else changes

    def _act(self, action: Action, number: int, now_s: float) -> Change:
        assert not isinstance(action, Wake)
        if type(action) not in _MOVES:
            raise ImpossibleActionError(f"action {number} is none, but {_kind(action)}")
        if not isinstance(action.job_id, str):
            raise ImpossibleActionError(f"action {number} names no job, but {_kind(action.job_id)}")
        job = self._jobs.get(action.job_id)
        allowed, after = _MOVES[type(action)]
        try:
            if job is None:
                raise ImpossibleActionError("there is no such job")
            status = self._statuses[job.job_id]
            if status.phase not in allowed:
                raise ImpossibleActionError(f"it is {status.phase}")
            until_s = math.inf
            if isinstance(action, _GRANTING):
                allocations = action.allocations
                if isinstance(action, Reserve):
                    until_s = _number(action.until_s)
                    if not now_s < until_s < math.inf:
                        raise ImpossibleActionError(f"it would expire at {until_s} s")
                self._check_gang(job, allocations, least=1 if isinstance(action, Reserve) else 0)
            else:
                allocations = status.allocations if after in _HOLDING else ()
            if isinstance(action, Reject) and not isinstance(action.why, str):
                raise ImpossibleActionError(f"the reason is no text, but {_kind(action.why)}")
            return self._move(job, after, now_s, allocations, until_s=until_s)
        except ImpossibleActionError as error:
            raise ImpossibleActionError(
                f"action {number}, {type(action).__name__} of job {action.job_id!r}: {error}"
            ) from None

    def _check_gang(self, job: Job, allocations: Sequence[Allocation], *, least: int) -> None:
        if not isinstance(allocations, tuple):
            raise ImpossibleActionError(f"allocations are no tuple, but {_kind(allocations)}")
        if not (least or job.fewest_gpus) <= len(allocations) <= job.gpus:
            needs = f"{job.fewest_gpus} to {job.gpus}" if job.min_gpus else f"{job.gpus}"
            raise ImpossibleActionError(f"{len(allocations)} members of a gang that needs {needs}")
        for allocation in allocations:
            if type(allocation) is not Allocation:
                raise ImpossibleActionError(f"among allocations there is {_kind(allocation)}")
            device, compute, memory = allocation
            if not (type(device) is type(compute) is type(memory) is int) or (
                not 0 <= device <= _MOST or not 1 <= compute <= _MOST or not 0 <= memory <= _MOST
            ):
                raise ImpossibleActionError(_unsound(allocation))
            if device >= self.cluster.devices:
                raise ImpossibleActionError(f"there is no device {device}")
            if job.kinds and self.cluster.kind_of(device) not in job.kinds:
                raise ImpossibleActionError(
                    f"{self.cluster.name_of(device)} is a {self.cluster.kind_of(device)}, and it "
                    f"runs on {', '.join(job.kinds)}"
                )
        check_tasks(job, self.cluster, allocations)

    def _check_urgency(self, changes: Sequence[Change]) -> None:
        """No best-effort job has what one that waits and is latency-sensitive needs.

        That is the case if devices that a batch gave to best-effort jobs are what it requests, and
        with those that are left they are enough for its gang: it could have been started first.
        """
        if not self._urgent:
            return
        put = {
            allocation: change.job
            for change in changes
            if not change.job.latency_sensitive
            and change.after.since_s < change.before.since_s + self.ageing_s
            and change.after.phase in (Phase.RUNNING, Phase.RESERVED)
            and self._statuses[change.job.job_id] is change.after
            for allocation in change.after.allocations
            if allocation not in change.before.allocations
        }
        for urgent in {one.request: one for one in self._urgent.values()}.values() if put else ():
            taken = [allocation for allocation in put if covers(allocation, urgent, self.cluster)]
            enough = suitable(urgent, self.cluster, self.capacity)
            enough[[allocation.device for allocation in taken]] = True
            if taken and enough.sum() >= members(urgent, self.cluster):
                raise ImpossibleActionError(
                    f"best-effort job {put[taken[0]].job_id!r} goes where "
                    f"latency-sensitive job {urgent.job_id!r}, which waits, would fit; "
                    "state.plan() builds decisions without such starts"
                )

    # How it is kept -------------------------------------------------------------------------

    def _never(self, job: Job) -> str:
        """Why a job can never run here; "" if it can."""
        if not job.kinds and not job.memory_bytes and job.fewest_gpus <= self.cluster.devices:
            return ""
        kinds = self.cluster.kinds
        unknown = [kind for kind in job.kinds if kind not in kinds]
        if job.kinds and len(unknown) == len(job.kinds):
            return f"it runs on {', '.join(unknown)}, of which there is no device"
        usable = [kind for kind in kinds if not job.kinds or kind in job.kinds]
        memory_of = self.cluster.memory_of
        large = [kind for kind in usable if memory_of[kind] >= job.memory_bytes]
        if not large:
            return (
                f"it asks for {job.memory_bytes / 2**30:g} GiB of a device, and there are at most "
                f"{max(memory_of[kind] for kind in usable) / 2**30:g}"
            )
        there = sum(kinds[kind] for kind in large)
        if job.fewest_gpus > there:
            return f"a gang of {job.fewest_gpus}, and there are {there} devices for it"
        return ""

    def _without(self, job: Job, kinds: Collection[str]) -> Job:
        if not kinds:
            return job
        left = (kind for kind in job.kinds or self.cluster.kinds if kind not in kinds)
        return replace(job, kinds=tuple(left))

    def _move(
        self,
        job: Job,
        phase: Phase,
        now_s: float,
        allocations: tuple[Allocation, ...],
        *,
        overflow: bool = False,
        until_s: float = math.inf,
    ) -> Change:
        """Let a job stand otherwise from now on; raises, and changes nothing, if it cannot."""
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
            () if not waits else _devices(before) or before.was_on,
            before.attained_s if before.phase in WAITING and not waits else before.kept_s,
        )
        self._put(job, before, after)
        return Change(job, before, after)

    def _put(self, job: Job, before: JobStatus, after: JobStatus) -> None:
        job_id = job.job_id
        if before.phase in _HOLDING:
            self._release(job_id, before)
        if after.phase in _HOLDING:
            try:
                self._hold(job_id, after)
            except ImpossibleActionError:
                if before.phase in _HOLDING:
                    self._hold(job_id, before)
                raise
        self._statuses[job_id] = after
        if before.phase is Phase.PENDING:
            self.pending.remove(job_id)
            self._urgent.pop(job_id, None)
        elif before.phase is Phase.RUNNING and after.phase is not Phase.RUNNING:
            del self._running[job_id]
        elif before.phase is Phase.RESERVED:
            del self._reserved[job_id]
        elif before.phase is Phase.PAUSED:
            del self._paused[job_id]
        if after.phase is Phase.PENDING:
            self._wait(job, after)
        elif after.phase is Phase.RUNNING:
            self._running[job_id] = after
        elif after.phase is Phase.RESERVED:
            self._reserved[job_id] = after
        elif after.phase is Phase.PAUSED:
            self._paused[job_id] = after

    def _wait(self, job: Job, status: JobStatus) -> None:
        self.pending.add(job, status)
        if job.latency_sensitive:
            self._urgent[job.job_id] = job

    def _hold(self, job_id: str, status: JobStatus) -> None:
        """Take what a job holds, if all of it is there."""
        paused, capacity = status.phase is Phase.PAUSED, self.capacity
        taken: list[Allocation] = []
        idle: list[int] = []
        for allocation in status.allocations:
            device, compute, memory = allocation
            compute = 0 if paused else compute
            there = self._on[device]
            if (
                capacity.compute_milli[device] < compute
                or capacity.memory_bytes[device] < memory
                or job_id in there
            ):
                why = self._why_not(job_id, allocation, compute)
                self._drop(job_id, taken, paused)
                raise ImpossibleActionError(why)
            capacity.compute_milli[device] -= compute
            capacity.memory_bytes[device] -= memory
            taken.append(allocation)
            if there:
                self._on[device] = tuple(sorted((*there, job_id)))
                self.was_shared = True
            else:
                self._on[device] = (job_id,)
                idle.append(device)
            if there or compute < FULL_DEVICE_MILLI:
                self._list(device)
        self.idle.take(idle)

    def _drop(self, job_id: str, allocations: Iterable[Allocation], paused: bool) -> None:
        for device, compute, memory in allocations:
            self.capacity.compute_milli[device] += 0 if paused else compute
            self.capacity.memory_bytes[device] += memory
            self._on[device] = tuple(other for other in self._on[device] if other != job_id)
            if paused or compute < FULL_DEVICE_MILLI or self._on[device]:
                self._list(device)

    def _list(self, device: int) -> None:
        """A device that is shared, or could be, was changed."""
        there, compute_milli = self._on[device], int(self.capacity.compute_milli[device])
        if there and compute_milli > 0:
            kind, memory_bytes = (
                self.cluster.kind_of(device),
                int(self.capacity.memory_bytes[device]),
            )
            jobs = [self._jobs[job_id] for job_id in there]
            self.shared.put(device, kind, compute_milli, memory_bytes, jobs)
        else:
            self.shared.leave(device)

    def _release(self, job_id: str, status: JobStatus) -> None:
        self._drop(job_id, status.allocations, status.phase is Phase.PAUSED)
        self.idle.give(
            [
                allocation.device
                for allocation in status.allocations
                if not self._on[allocation.device]
            ]
        )

    def _why_not(self, job_id: str, allocation: Allocation, compute: int) -> str:
        device, name = allocation.device, self.cluster.name_of(allocation.device)
        if self.cluster.node_of[device] in self._down:
            return f"{name} is down"
        if job_id in self._on[device]:
            return f"two members on {name}"
        left = int(self.capacity.compute_milli[device])
        if left < compute:
            return f"{name} has {left} thousandths of its compute left, not {compute}"
        memory = int(self.capacity.memory_bytes[device])
        return f"{name} has {memory} bytes of memory left, not {allocation.memory_bytes}"

    def _undo(self, changes: Sequence[Change], order: Iterable[str]) -> None:
        for job, before, after in reversed(changes):
            self._put(job, after, before)
        if order:  # who came to run first is first again
            self._running = {job_id: self._running[job_id] for job_id in order}


def _devices(status: JobStatus) -> tuple[int, ...]:
    """That it held, and ran on."""
    return tuple(g.device for g in status.allocations) if status.phase in _AT_WORK else ()


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ImpossibleActionError(f"{_kind(value)} is no time")
    try:
        is_nan = math.isnan(value)
    except OverflowError:
        raise ImpossibleActionError("a time is beyond all that a float can hold") from None
    if is_nan:
        raise ImpossibleActionError("nan is no time")
    return value


def _kind(thing: object) -> str:
    """Of what type a thing is, of which nothing else can be said: not all print the same twice."""
    return f"something of type {type(thing).__name__}"


def _unsound(allocation: Allocation) -> str:
    """Return what is wrong with an allocation, whatever its device; "" if nothing is."""
    for field, part in zip(Allocation._fields, allocation, strict=True):
        if type(part) is not int:
            return f"{field} is no whole number, but {_kind(part)}"
        if abs(part) > _MOST:
            return f"{field} is beyond 64 bits"
    if allocation.device < 0:
        return f"there is no device {allocation.device}"
    return (
        f"an allocation of {allocation.compute_milli} thousandths, {allocation.memory_bytes} bytes"
    )


_MOST = 2**63 - 1
_GRANTING = Reserve, Start, Resize, Migrate
_AT_WORK = frozenset({Phase.RUNNING, Phase.PAUSED})
_HOLDING = _AT_WORK | {Phase.RESERVED}
# In which phases a job may be, and in which it is afterwards.
_MOVES: dict[type[Action], tuple[frozenset[Phase], Phase]] = {
    Reserve: (WAITING, Phase.RESERVED),
    Start: (WAITING, Phase.RUNNING),
    Preempt: (_HOLDING, Phase.PENDING),
    Resize: (frozenset({Phase.RUNNING}), Phase.RUNNING),
    Migrate: (frozenset({Phase.RUNNING}), Phase.RUNNING),
    Pause: (frozenset({Phase.RUNNING}), Phase.PAUSED),
    Resume: (frozenset({Phase.PAUSED}), Phase.RUNNING),
    Reject: (frozenset({Phase.PENDING}), Phase.REJECTED),
}
