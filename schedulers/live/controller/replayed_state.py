"""State of jobs and nodes, replayed from the journal's records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from google.protobuf.json_format import ParseDict

from presage.schedulers.health.health_signal import Severity
from presage.schedulers.live.controller.device_outages import DeviceOutages
from presage.schedulers.live.controller.devices.device_health import DeviceHealth
from presage.schedulers.live.controller.journal.records import (
    ClockSet,
    ClusterCreated,
    DeviceDrained,
    Ended,
    HalfLifeChanged,
    HealthReported,
    Held,
    LeaseChanged,
    MemberEnded,
    NodeDrained,
    NodeJoined,
    NodeLost,
    Placed,
    PriorityChanged,
    Pruned,
    QuotaChanged,
    Record,
    Requeued,
    Resized,
    Started,
    Stopping,
    Submitted,
)
from presage.schedulers.live.controller.operations.job_gates import (
    ArrayKey,
    JobGates,
    array_key,
)
from presage.schedulers.live.controller.operations.user_shares import HALF_LIFE, UserShares, row_key
from presage.schedulers.live.protocol.submitted_job import SubmittedJob
from presage.schedulers.live.protocol.wire import read_job
from presage.schedulers.v1 import cluster_pb2 as pb


class Stage(StrEnum):
    """Stage of a job's life."""

    WAITING = "waiting"
    PLACED = "placed"  # assigned to a node that has not reported it as running yet
    RUNNING = "running"
    LEAVING = "leaving"  # its node is to end it
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"
    REJECTED = "rejected"
    TIMED_OUT = "timed-out"


MAX_SIZES = 200  # changes of size, and workers, that are kept of an elastic job
_HEALTHY = DeviceHealth()
FAILURE_MEMORY_S = 3600.0  # after which a failure of a worker does not count any more


class Member(NamedTuple):
    """Worker of an elastic job: a task of its own on one device.

    Attributes
    ----------
    number : int
        From 1; no number is used twice in an attempt of the job.
    device : int
        Number in its node, from 0.
    """

    number: int
    node: str
    device: int
    compute_milli: int
    memory_bytes: int

    @property
    def name(self) -> str:
        """Name of the worker."""
        return f"m{self.number}"

    @property
    def allocation(self) -> list[int]:
        """Allocation on its node, as [device, compute_milli, memory_bytes]."""
        return [self.device, self.compute_milli, self.memory_bytes]


JobRecord = (
    Held | PriorityChanged | Placed | Started | Resized | MemberEnded | Stopping | Requeued | Ended
)
_TOTALS = ("now_s", "job_count", "max_attempt", "lease_s", "cluster_id")  # row "now"
AT_NODE = frozenset({Stage.PLACED, Stage.RUNNING, Stage.LEAVING})
ENDED = frozenset({
    Stage.FINISHED, Stage.FAILED, Stage.CANCELLED, Stage.REJECTED, Stage.TIMED_OUT,
})  # fmt: skip


@dataclass(slots=True)
class LiveJob:
    """Job since its submission; times are in seconds of the cluster's clock, unless ``unix``.

    Attributes
    ----------
    job_json : mapping
        The protocol's message as JSON.
    owner, run_as, size_bytes, traceparent
        As in :class:`~presage.schedulers.live.controller.journal.records.Submitted`.
    since_s : float
        When it entered its stage.
    number : int
        Number in the order of submission.
    attempt : int
        Number of its last placement; the first is ``attempt_offset`` + 1.
    attempt_offset : int
        Largest attempt of any removed job. A removed job may have had the same id: its tasks on a
        disconnected node must not be mistaken for this job's.
    node : str
        Current or last node; "" for an elastic job.
    allocations : list of [device, compute_milli, memory_bytes]
        Allocations on that node: as planned, and once it has ended, its last ones.
    members, leaving : list of Member
        Workers of an elastic job, and those of them that are to leave.
    next_member : int
        Number of the next worker.
    member_nodes : dict of str to str
        Node of each worker of this attempt, by its name.
    first_member : str
        Name of the first worker; of the last first one, if there is none any more.
    sizes : list of [time_s, gpus, reason]
        Last changes of the number of devices of an elastic job.
    resized_s : float
        When its number of devices last changed.
    attained_s : float
        Device-seconds of an elastic job before ``resized_s``.
    member_failures : int
        Number of workers of this attempt that failed, none an hour after the one before.
    member_failed_s : float
        When the last of them failed.
    late_failure : str
        How a worker failed after the last step; "" if none did.
    is_complete : bool
        Whether a worker of this attempt completed the job.
    running_since_s : float
        When this attempt of an elastic job, or the last one of another, began to run.
    kinds : list of str
        Suitable kinds at its last placement; empty if all kinds that its user allows were suitable.
    placement_reason : str
        Why its node was chosen at the last placement.
    cancel : bool
        Whether it ends, instead of waiting again, once its node has ended it.
    first_start_s : float or None
        When it first ran.
    saved : float
        Fraction of the job in its last checkpoint.
    overflows, failures : int
        Number of out-of-memory errors, and of other failures.
    small_bytes : int
        Memory of the largest exclusive device on which it ran out of memory; it needs a larger one.
    elapsed_s : float
        From its first start to its last placement.
    waited_s, ran_s : float
        Total waiting and running time before ``since_s``.
    end_stage : str
        Stage after its end if ``cancel``; "" if it was cancelled.
    priority : int or None
        Changed priority; None for that of its submission.
    held, held_by, held_by_admin : bool, str, bool
        Whether it must not start, who holds it, and whether only administrators release it.
    awaited : list of str
        Jobs that have to end before it starts.
    dependency_problem : str
        Why a job that had to finish before it will not; "" if none.
    """

    job_id: str
    job_json: Mapping[str, Any]
    submit_s: float
    submitted_unix_s: float
    since_s: float
    number: int
    owner: str = ""
    run_as: str = ""
    size_bytes: int = 0
    stage: Stage = Stage.WAITING
    reason: str = ""
    attempt: int = 0
    attempt_offset: int = 0
    node: str = ""
    allocations: list[list[int]] = field(default_factory=list)
    predictions: list[dict[str, Any]] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    placement_reason: str = ""
    cancel: bool = False
    first_start_s: float | None = None
    started_unix_s: float = 0.0
    ended_unix_s: float = 0.0
    saved: float = 0.0
    overflows: int = 0
    failures: int = 0
    small_bytes: int = 0
    elapsed_s: float = 0.0
    waited_s: float = 0.0
    ran_s: float = 0.0
    members: list[Member] = field(default_factory=list)
    leaving: list[Member] = field(default_factory=list)
    next_member: int = 1
    member_nodes: dict[str, str] = field(default_factory=dict)
    first_member: str = ""
    sizes: list[list[Any]] = field(default_factory=list)
    resized_s: float = 0.0
    attained_s: float = 0.0
    member_failures: int = 0
    member_failed_s: float = 0.0
    late_failure: str = ""
    is_complete: bool = False
    running_since_s: float = 0.0
    traceparent: str = ""
    end_stage: str = ""
    priority: int | None = None
    held: bool = False
    held_by: str = ""
    held_by_admin: bool = False
    awaited: list[str] = field(default_factory=list)
    dependency_problem: str = ""
    # Caches of parsed values; not part of a snapshot.
    _submitted: SubmittedJob | None = field(default=None, compare=False)
    _message: pb.Job | None = field(default=None, compare=False)
    _predictions: tuple[list[dict[str, Any]], list[pb.Prediction]] | None = field(
        default=None, compare=False
    )

    @property
    def message(self) -> pb.Job:
        """Message of the job; must not be changed."""
        if self._message is None:
            self._message = ParseDict(dict(self.job_json), pb.Job())
            if self.priority is not None:
                self._message.priority = self.priority
        return self._message

    @property
    def prediction_messages(self) -> list[pb.Prediction]:
        """Messages of the predictions; must not be changed."""
        if self._predictions is None or self._predictions[0] is not self.predictions:
            self._predictions = (
                self.predictions,
                [ParseDict(dict(row), pb.Prediction()) for row in self.predictions],
            )
        return self._predictions[1]

    @property
    def is_elastic(self) -> bool:
        """Whether it has a worker on each of its devices, on any nodes."""
        return self.submitted.job.is_elastic

    @property
    def nodes(self) -> list[str]:
        """Nodes at which it is, without repetition."""
        if self.stage not in AT_NODE:
            return []
        if self.members or self.leaving:
            return list(dict.fromkeys(member.node for member in (*self.members, *self.leaving)))
        return [self.node] if self.node else []

    @property
    def held_milli(self) -> int:
        """Compute that it holds as planned, in thousandths of a device, until its nodes end it."""
        if self.stage not in AT_NODE:
            return 0
        leaving_milli = sum(member.compute_milli for member in self.leaving)
        return self.staying_milli + leaving_milli

    @property
    def staying_milli(self) -> int:
        """Part of ``held_milli`` without the workers that are to leave."""
        members_milli = sum(member.compute_milli for member in self.members)
        return members_milli + sum(milli for _, milli, _ in self.allocations)

    @property
    def starts(self) -> int:
        """Number of placements."""
        return self.attempt - self.attempt_offset

    @property
    def submitted(self) -> SubmittedJob:
        """Job as its user submitted it."""
        if self._submitted is None:
            self._submitted = read_job(self.message, self.submit_s, "job")
        return self._submitted

    @property
    def final_stage(self) -> Stage:
        """Stage after its end if ``cancel``."""
        return Stage(self.end_stage or Stage.CANCELLED)


@dataclass(slots=True)
class LiveNode:
    """Node that has joined.

    Attributes
    ----------
    devices : list of [kind, memory_bytes]
    lost : bool
        Whether it has not reported for too long.
    lost_s : float
        When it was recorded as lost.
    drained_by, drain_reason : str
        Who drained it, and why; "" if unknown.
    device_ids : list of str
        Id of the hardware of each device, as in ``NodeJoined``.
    signals_id, signals_number : str, int
        Last recorded health signal of its agent, as in ``HealthReported``.
    """

    name: str
    agent_id: str
    devices: list[list[Any]]
    drained: bool = False
    lost: bool = False
    lost_s: float = 0.0
    device_ids: list[str] = field(default_factory=list)
    signals_id: str = ""
    signals_number: int = 0
    drained_by: str = ""
    drain_reason: str = ""
    _history_ids: list[str] = field(default_factory=list, compare=False, repr=False)  # a cache

    @property
    def history_ids(self) -> Sequence[str]:
        """Id of each device in the history of outages: that of the hardware, or node and number."""
        if not self._history_ids:
            ids = self.device_ids or [""] * len(self.devices)
            self._history_ids = [one or f"{self.name}/{number}" for number, one in enumerate(ids)]
        return self._history_ids

    @property
    def kinds(self) -> list[tuple[str, int]]:
        """Kind and bytes of memory of each device."""
        return [(kind, memory_bytes) for kind, memory_bytes in self.devices]


@dataclass(slots=True)
class ReplayedState:
    """Jobs and nodes, in the order of their records; changed by :meth:`apply` only.

    Attributes
    ----------
    at_node : dict of str to dict of str to LiveJob
        Jobs that are assigned to each node.
    now_s : float
        Time of the last record.
    ended : dict of str to None
        Ids of ended jobs, those that ended first at the front.
    job_count : int
        Number of jobs submitted so far.
    max_attempt : int
        Largest attempt of any removed job.
    lease_s : float
        Longest lease that a node may hold.
    cluster_id : str
        Unique id of the cluster and its journal.
    stages : Counter of Stage
        Number of jobs in each stage.
    unfinished : dict of str to (int, int)
        By owner, the number and the bytes of its jobs that have not ended.
    outages : DeviceOutages
        Outages of devices so far.
    health : dict of str to DeviceHealth
        Health of devices that had a signal or were withdrawn, by their ids in the history of
        outages. It follows a device to another node; a device that replaces it is in service.
    changed_keys : set of str
        Keys of the rows that changed since the last :meth:`take_changes`.
    gates : JobGates
        What waiting jobs wait for besides devices.
    reviewed : dict of str to None
        Jobs that may have entered or left the queue since the last :meth:`take_reviewed`.
    changed_arrays : dict of (str, str) to None
        Arrays with a limit of which a job has changed since then.
    limited : dict of str to LiveJob
        Running jobs that have a time limit.
    users : UserShares
        Quotas of users, and their past use.
    """

    jobs: dict[str, LiveJob] = field(default_factory=dict)
    nodes: dict[str, LiveNode] = field(default_factory=dict)
    at_node: dict[str, dict[str, LiveJob]] = field(default_factory=dict)
    ended: dict[str, None] = field(default_factory=dict)
    clock: ClockSet | None = None
    now_s: float = 0.0
    job_count: int = 0
    max_attempt: int = 0
    lease_s: float = 0.0
    cluster_id: str = ""
    stages: Counter[Stage] = field(default_factory=Counter)
    unfinished: dict[str, tuple[int, int]] = field(default_factory=dict)
    outages: DeviceOutages = field(default_factory=DeviceOutages)
    health: dict[str, DeviceHealth] = field(default_factory=dict)
    changed_keys: set[str] = field(default_factory=set, compare=False)
    gates: JobGates = field(default_factory=JobGates)
    reviewed: dict[str, None] = field(default_factory=dict, compare=False)
    changed_arrays: dict[ArrayKey, None] = field(default_factory=dict, compare=False)
    limited: dict[str, LiveJob] = field(default_factory=dict)
    users: UserShares = field(default_factory=UserShares)

    def apply(self, record: Record) -> None:
        """Apply a record; records are applied in order."""
        self.now_s = max(self.now_s, record.time_s)
        self.changed_keys.update(_keys(record))
        match record:
            case Submitted():
                self._submit(record)
            case Pruned():
                self._prune(record)
            case NodeJoined() | NodeDrained() | NodeLost():
                self._update_node(record)
            case HealthReported():
                self._note_signals(record)
            case DeviceDrained():
                self._drain_device(record)
            case ClockSet():
                self.clock = record
            case ClusterCreated():
                self.cluster_id = record.cluster_id
            case LeaseChanged():
                self.lease_s = record.lease_s
            case QuotaChanged():
                self.users.change_quota(record)
            case HalfLifeChanged():
                self.changed_keys.update(self.users.change_half_life(record, self.now_s))
            case _:
                self._update_job(self.jobs[record.job_id], record)

    def _submit(self, record: Submitted) -> None:
        job = self.jobs[record.job_id] = LiveJob(
            record.job_id,
            record.job,
            record.time_s,
            record.time_unix_s,
            record.time_s,
            self.job_count,
            record.owner,
            record.run_as,
            record.size_bytes,
            attempt=self.max_attempt,
            attempt_offset=self.max_attempt,
            traceparent=record.traceparent,
        )
        if job.message.hold:
            job.held, job.held_by = True, record.owner
        names = dict.fromkeys((*job.message.after, *job.message.after_any))
        job.awaited = self._awaited(names, record.owner)
        self._count_unfinished(job, 1)
        self.job_count += 1
        self.stages[Stage.WAITING] += 1
        self.gates.enter_array(job)
        self.gates.enter(job)
        self._review([job])

    def _awaited(self, names: Iterable[str], owner: str) -> list[str]:
        """Return the jobs that have to end, of names of jobs and arrays."""
        found: dict[str, None] = {}
        for name in names:
            jobs = self.gates.jobs_of_name(self.jobs, name, owner)
            found.update({job.job_id: None for job in jobs if job.stage not in ENDED})
            if not jobs:  # a later job of the same submission
                found[name] = None
        return list(found)

    def _prune(self, record: Pruned) -> None:
        for job_id in record.job_ids:
            del self.ended[job_id]
            job = self.jobs.pop(job_id)
            self.gates.leave_array(job)
            self.max_attempt = max(self.max_attempt, job.attempt)
            self.stages[job.stage] -= 1
        for name in record.nodes:
            del self.nodes[name]
            self.at_node.pop(name, None)

    def _update_node(self, record: NodeJoined | NodeDrained | NodeLost) -> None:
        match record:
            case NodeJoined():
                known = self.nodes.get(record.node)
                drained = known.drained if known else False
                node = self.nodes[record.node] = LiveNode(
                    record.node, record.agent_id, record.devices, drained,
                    device_ids=record.device_ids,
                )  # fmt: skip
                if known is not None:
                    node.signals_id, node.signals_number = known.signals_id, known.signals_number
                    node.drained_by, node.drain_reason = known.drained_by, known.drain_reason
                up = (one for one in node.history_ids if not self.health_of(one).has_failed)
                self._note_outages(self.outages.repair(up, record.time_s))
            case NodeDrained():
                node = self.nodes[record.node]
                node.drained, node.drained_by = record.drained, record.by if record.drained else ""
                node.drain_reason = record.reason if record.drained else ""
            case NodeLost():
                node = self.nodes[record.node]
                node.lost, node.lost_s = True, record.time_s
                if not node.drained:
                    lost = (one for one in node.history_ids if not self.health_of(one).drained)
                    self._note_outages(self.outages.fail(lost, record.time_s))

    def health_of(self, device_id: str) -> DeviceHealth:
        """Return the health of a device; must not be changed."""
        return self.health.get(device_id, _HEALTHY)

    def _note_signals(self, record: HealthReported) -> None:
        """Take over signals. Those of a node or device under maintenance are no evidence."""
        node = self.nodes[record.node]
        node.signals_id, node.signals_number = record.signals_id, record.number
        for device, source, severity, reason in record.signals:
            device_id = node.history_ids[device]
            health = self._changed_health(device_id)
            health.note(source, severity, reason, record.time_s)
            if severity == Severity.HEALTHY:
                self._end_outage(node, device_id, record.time_s)
            elif severity == Severity.NOTICE or node.drained or health.drained:
                continue
            elif severity == Severity.FAILED:
                self._note_outages(self.outages.fail([device_id], record.time_s))
            else:
                self._note_outages(self.outages.note_symptom(device_id, record.time_s))

    def _drain_device(self, record: DeviceDrained) -> None:
        node = self.nodes[record.node]
        device_id = node.history_ids[record.device]
        health = self._changed_health(device_id)
        if record.drained:
            health.drain(record.by, record.reason)
        else:
            health.restore()
            self._end_outage(node, device_id, record.time_s)

    def _changed_health(self, device_id: str) -> DeviceHealth:
        self.changed_keys.add(f"health {device_id}")
        return self.health.setdefault(device_id, DeviceHealth())

    def _end_outage(self, node: LiveNode, device_id: str, now_s: float) -> None:
        """End the outage of a device, unless it has failed for another reason."""
        if not node.lost and not self.health_of(device_id).has_failed:
            self._note_outages(self.outages.repair([device_id], now_s))

    def _note_outages(self, device_ids: Iterable[str]) -> None:
        self.changed_keys.update(f"outages {device_id}" for device_id in device_ids)

    def _update_job(
        self,
        job: LiveJob,
        record: JobRecord,
    ) -> None:
        nodes, stage, held_milli = job.nodes, job.stage, job.held_milli
        self._update_status(job, record)
        self._index(job, nodes)
        if gained_milli := job.held_milli - held_milli:
            key = self.users.hold(job.message.user, gained_milli, self.now_s)
            self.changed_keys.add(key)
        if job.stage in ENDED and stage not in ENDED:
            self._end_waits(job)
        if job.stage is not stage or isinstance(record, Held | PriorityChanged):
            self._review([job])

    def _end_waits(self, job: LiveJob) -> None:
        """Note the end of a job for the jobs that run after it."""
        dependents = [self.jobs[job_id] for job_id in self.gates.leave(job)]
        for dependent in dependents:
            dependent.awaited.remove(job.job_id)
            if job.stage is not Stage.FINISHED and self._must_finish(job, dependent):
                dependent.dependency_problem = (
                    f"job {job.job_id!r}, after which it runs, is {job.stage}"
                )
                self.gates.broken[dependent.job_id] = None
            self.changed_keys.add(f"job {dependent.job_id}")
        self._review([one for one in dependents if not one.awaited])

    def _must_finish(self, job: LiveJob, dependent: LiveJob) -> bool:
        """Return whether a job must finish before another, by its name or that of its array."""
        names, (owner, array) = dependent.message.after, array_key(job)
        if job.job_id in names:
            return True
        if not array or array not in names or owner != dependent.owner:
            return False
        named = self.jobs.get(array)  # the dependency is on a job of that name, not on the array
        return named is None or named.owner != owner or named.number > dependent.number

    def _review(self, jobs: Sequence[LiveJob]) -> None:
        """Note that jobs, and others of their arrays, may have entered or left the queue."""
        self.reviewed.update((job.job_id, None) for job in jobs)
        limited = (array_key(job) for job in jobs if job.message.array_limit)
        self.changed_arrays.update(dict.fromkeys(limited))

    def take_reviewed(self) -> list[LiveJob]:
        """Return the waiting jobs that may have entered or left the queue since the last call.

        This also updates the gates of arrays: once for all records of a change, since an array may
        have thousands of jobs.
        """
        for key in self.changed_arrays:
            self.reviewed.update(dict.fromkeys(self.gates.review_array(key, self.jobs)))
        self.changed_arrays.clear()
        found, self.reviewed = self.reviewed, {}
        jobs = (self.jobs.get(job_id) for job_id in found)
        return [job for job in jobs if job is not None and job.stage is Stage.WAITING]

    def _update_status(
        self,
        job: LiveJob,
        record: JobRecord,
    ) -> None:
        match record:
            case Held():
                job.held, job.held_by = record.held, record.by if record.held else ""
                job.held_by_admin = record.by_admin
            case PriorityChanged():
                job.priority, job._message, job._submitted = record.priority, None, None
            case Placed():
                job.attempt, job.node = record.attempt, record.node
                job.allocations, job.predictions, job.kinds = (
                    record.allocations,
                    record.predictions,
                    record.kinds,
                )
                job.reason, job.placement_reason = "", record.reason
                if job.first_start_s is not None:
                    job.elapsed_s = record.time_s - job.first_start_s
                if record.members:
                    _begin_attempt(job, record)
                self._set_stage(job, Stage.PLACED, record.time_s)
            case Resized():
                _set_members(job, record.members, record)
            case MemberEnded():
                _remove_member(job, record)
            case Started():
                if job.first_start_s is None:
                    job.first_start_s, job.started_unix_s = record.time_s, record.time_unix_s
                job.running_since_s = record.time_s
                self._set_stage(job, Stage.RUNNING, record.time_s)
            case Stopping():
                job.reason, job.cancel = record.reason, record.cancel
                job.end_stage = record.stage
                self._set_stage(job, Stage.LEAVING, record.time_s)
            case Requeued():
                job.reason, job.saved = record.reason, max(job.saved, record.saved)
                job.ran_s += record.ran_s
                job.allocations = record.allocations
                job.overflows += record.overflowed
                job.failures += record.failed
                job.small_bytes = max(job.small_bytes, record.small_bytes)
                _end_members(job, record)
                self._set_stage(job, Stage.WAITING, record.time_s)
            case Ended():
                job.reason, job.ended_unix_s = record.reason, record.time_unix_s
                job.allocations = record.allocations or job.allocations
                job.ran_s += record.ran_s
                _end_members(job, record)
                self._set_stage(job, Stage(record.stage), record.time_s)

    def _set_stage(self, job: LiveJob, stage: Stage, time_s: float) -> None:
        if job.stage is Stage.WAITING:
            job.waited_s += time_s - job.since_s
        self.stages[job.stage] -= 1
        self.stages[stage] += 1
        job.stage, job.since_s = stage, time_s
        if stage in ENDED:
            self.ended[job.job_id] = None
            self._count_unfinished(job, -1)

    def _index(self, job: LiveJob, before: Sequence[str]) -> None:
        """Enter a job at its nodes; ``before`` are those at which it is entered."""
        if job.stage is Stage.RUNNING and job.message.time_limit_s:
            self.limited[job.job_id] = job
        else:
            self.limited.pop(job.job_id, None)
        nodes = job.nodes
        for name in nodes:
            self.at_node.setdefault(name, {})[job.job_id] = job
        for name in before:
            if name not in nodes:
                del self.at_node[name][job.job_id]
                if not self.at_node[name]:
                    del self.at_node[name]

    def _count_unfinished(self, job: LiveJob, sign: int) -> None:
        jobs, size_bytes = self.unfinished.get(job.owner, (0, 0))
        remaining = jobs + sign, size_bytes + sign * job.size_bytes
        if remaining[0]:
            self.unfinished[job.owner] = remaining
        else:
            self.unfinished.pop(job.owner, None)

    # Rows of snapshots ----------------------------------------------------------------------

    def take_changes(self) -> dict[str, dict[str, Any] | None]:
        """Return the snapshot rows that changed since the last call; None for removed ones."""
        rows = {key: self._row(key) for key in sorted(self.changed_keys)}
        self.changed_keys.clear()
        return rows | {"now": {name: getattr(self, name) for name in _TOTALS}}

    def _row(self, key: str) -> dict[str, Any] | None:
        kind, _, name = key.partition(" ")
        if kind == "job":
            job = self.jobs.get(name)
            if job is None:
                return None
            return {name: getattr(job, name) for name in LiveJob.__slots__ if name[0] != "_"}
        if kind == "outages":
            spans, symptoms = self.outages.spans.get(name), self.outages.symptoms.get(name)
            return {"spans": spans or [], "symptoms": symptoms or []}
        if kind == "health":
            return asdict(self.health[name])
        if kind in ("use", "quota", HALF_LIFE):
            return self.users.row(key)
        found = self.nodes.get(name) if kind == "node" else self.clock
        row = {} if found is None else asdict(found)
        return {name: value for name, value in row.items() if name[0] != "_"} or None

    def _read_row(self, key: str, row: Mapping[str, Any]) -> None:
        if key.startswith("job "):
            members = {
                name: [Member(*one) for one in row.get(name, ())] for name in ("members", "leaving")
            }
            job = LiveJob(**{**row, **members, "stage": Stage(row["stage"])})
            self.jobs[job.job_id] = job
            self._index(job, ())
        elif key.startswith("node "):
            self.nodes[row["name"]] = LiveNode(**row)
        elif key.startswith("outages "):
            self._read_outages(key.partition(" ")[2], row)
        elif key.startswith("health "):
            self.health[key.partition(" ")[2]] = DeviceHealth(**row)
        elif key == "clock":
            self.clock = ClockSet(**row)
        elif key == "now":
            for name in _TOTALS:
                setattr(self, name, row[name])

    def _read_outages(self, device_id: str, row: Mapping[str, Any]) -> None:
        if row["spans"]:
            self.outages.spans[device_id] = [[*one] for one in row["spans"]]
        if symptoms := row.get("symptoms"):  # missing in earlier snapshots
            self.outages.symptoms[device_id] = [*symptoms]

    @classmethod
    def from_rows(cls, rows: Mapping[str, Mapping[str, Any]]) -> ReplayedState:
        """Return the state of a snapshot, from all rows of :meth:`take_changes` so far."""
        state = cls()
        for key, row in rows.items():
            state._read_row(key, row)
        state.stages.update(job.stage for job in state.jobs.values())
        for job in state.jobs.values():
            if job.stage not in ENDED:
                state._count_unfinished(job, 1)
        ended = (job for job in state.jobs.values() if job.stage in ENDED)
        state.ended = {job.job_id: None for job in sorted(ended, key=lambda job: job.since_s)}
        state.jobs = dict(sorted(state.jobs.items(), key=lambda item: item[1].number))
        for job in state.jobs.values():
            state.gates.enter_array(job)
            if job.stage not in ENDED:
                state.gates.enter(job)
        state.users = UserShares.from_rows(rows, state.jobs.values(), state.now_s)
        for array in state.gates.members:
            list(state.gates.review_array(array, state.jobs))
        return state


def _begin_attempt(job: LiveJob, record: Placed) -> None:
    """Give an elastic job its first workers."""
    job.next_member, job.member_failures, job.is_complete = 1, 0, False
    job.running_since_s, job.member_nodes, job.late_failure = 0.0, {}, ""
    _set_members(job, record.members, record)


def _set_members(
    job: LiveJob, rows: Iterable[Sequence[Any]], record: Placed | Resized | MemberEnded
) -> None:
    """Change the workers of an elastic job; those that are not among them any more leave."""
    members, before = [Member(*row) for row in rows], {member.number for member in job.members}
    kept = {member.number for member in members}
    if isinstance(record, Resized):
        job.leaving += [member for member in job.members if member.number not in kept]
    job.attained_s += len(job.members) * (record.time_s - job.resized_s)
    job.members, job.resized_s = members, record.time_s
    job.member_nodes.update((member.name, member.node) for member in members)
    for name in list(job.member_nodes)[:-MAX_SIZES]:
        del job.member_nodes[name]
    job.first_member = min(members).name if members else job.first_member
    job.next_member = max(job.next_member, *(number + 1 for number in kept), 1)
    # At the end of an attempt, its workers end one after another. New shares are no new size.
    if kept != before and not job.is_complete and job.stage is not Stage.LEAVING:
        _note_size(job, record.time_s, record.reason)


def _end_members(job: LiveJob, record: Requeued | Ended) -> None:
    job.attained_s += len(job.members) * (record.time_s - job.resized_s)
    if job.sizes and job.sizes[-1][1]:
        job.members = []
        _note_size(job, record.time_s, record.reason)
    job.members, job.leaving, job.resized_s = [], [], record.time_s


def _remove_member(job: LiveJob, record: MemberEnded) -> None:
    """Remove a worker of an elastic job that has ended."""
    if record.failed:
        _note_failure(job, record)
    job.is_complete |= record.finished
    job.overflows += record.overflowed
    job.leaving = [one for one in job.leaving if one.number != record.number]
    left = [one for one in job.members if one.number != record.number]
    if len(left) < len(job.members):
        _set_members(job, left, record)


def _note_failure(job: LiveJob, record: MemberEnded) -> None:
    if record.time_s - job.member_failed_s > FAILURE_MEMORY_S:
        job.member_failures = 0
    job.member_failures += 1
    job.member_failed_s = record.time_s
    if record.is_late:
        job.late_failure = record.reason


def _note_size(job: LiveJob, time_s: float, reason: str) -> None:
    job.sizes.append([time_s, len(job.members), reason])
    del job.sizes[:-MAX_SIZES]


def _keys(record: Record) -> list[str]:
    """Return the keys of the snapshot rows that a record changes."""
    match record:
        case NodeJoined() | NodeDrained() | NodeLost() | HealthReported():
            return [f"node {record.node}"]
        case ClockSet():
            return ["clock"]
        case QuotaChanged() | HalfLifeChanged():
            return [row_key(record)]
        case LeaseChanged() | ClusterCreated() | DeviceDrained():
            return []
        case Pruned():
            jobs = [f"job {job_id}" for job_id in record.job_ids]
            return jobs + [f"node {name}" for name in record.nodes]
        case _:
            return [f"job {record.job_id}"]
