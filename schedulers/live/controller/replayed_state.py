"""What the controller knows for sure: a fold over its journal, and nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from google.protobuf.json_format import ParseDict

from presage.schedulers.live.controller.journal.records import (
    ClockSet,
    ClusterCreated,
    Ended,
    LeaseChanged,
    NodeDrained,
    NodeJoined,
    NodeLost,
    Placed,
    Pruned,
    Record,
    Requeued,
    Started,
    Stopping,
    Submitted,
)
from presage.schedulers.live.protocol.submitted_job import SubmittedJob
from presage.schedulers.live.protocol.wire import job_from_json
from presage.schedulers.v1 import cluster_pb2 as pb


class Stage(StrEnum):
    """The one state that a job is in."""

    WAITING = "waiting"
    PLACED = "placed"  # given to a node, which has not said yet that it runs
    RUNNING = "running"
    LEAVING = "leaving"  # its node is to end it
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"
    REJECTED = "rejected"


_COUNTS = ("now_s", "count", "attempts", "lease_s", "cluster_id")  # of the book itself
AT_NODE = frozenset({Stage.PLACED, Stage.RUNNING, Stage.LEAVING})
OVER = frozenset({Stage.FINISHED, Stage.FAILED, Stage.CANCELLED, Stage.REJECTED})


@dataclass(slots=True)
class LiveJob:
    """A job, from its submission on; times are the cluster's, in seconds, unless they say unix.

    Attributes
    ----------
    row : mapping
        The protocol's message as JSON.
    owner, run_as, size_bytes
        As in :class:`~presage.schedulers.live.controller.journal.records.Submitted`.
    since_s : float
        When it came to its stage.
    number : int
        Counts the jobs as they were submitted.
    attempt : int
        Number of its last placement; counted from ``attempt_offset`` on.
    attempt_offset : int
        Where a job of its name may have been forgotten, the attempts that that one may have had: a
        node that was away for long does not take one's task for the other's.
    node : str
        Where it is, or was last.
    allocations : list of [device, compute_milli, memory_bytes]
        On that node: as foreseen when it was placed; as it was in the end, once it is over.
    kinds : list of str
        That would have done for its last placement, where that were fewer than its user allows.
    placement_reason : str
        Why its node was, when it was last placed.
    cancel : bool
        Of one that is leaving: it does not wait again.
    first_start_s : float or None
        When it first ran.
    saved : float
        Part of it that its last checkpoint holds.
    overflows, failures : int
        How often it ran out of memory, or failed by itself.
    small_bytes : int
        The memory of the largest device that it ran out of by itself; it goes on larger ones alone.
    elapsed_s : float
        From when it first ran to its last placement.
    waited_s, ran_s : float
        That it waited, and ran, before ``since_s``; without what it does now.
    """

    job_id: str
    row: Mapping[str, Any]
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
    # Of the row, once somebody has asked; not of a snapshot.
    _submitted: SubmittedJob | None = field(default=None, compare=False)
    _message: pb.Job | None = field(default=None, compare=False)
    _predictions: tuple[list[dict[str, Any]], list[pb.Prediction]] | None = field(
        default=None, compare=False
    )

    @property
    def message(self) -> pb.Job:
        """The protocol's; not to be changed."""
        if self._message is None:
            self._message = ParseDict(dict(self.row), pb.Job())
        return self._message

    @property
    def prediction_messages(self) -> list[pb.Prediction]:
        """The protocol's, of what was told; not to be changed."""
        if self._predictions is None or self._predictions[0] is not self.predictions:
            self._predictions = (
                self.predictions,
                [ParseDict(dict(one), pb.Prediction()) for one in self.predictions],
            )
        return self._predictions[1]

    @property
    def starts(self) -> int:
        """How often it was placed."""
        return self.attempt - self.attempt_offset

    @property
    def submitted(self) -> SubmittedJob:
        """As its user submitted it."""
        if self._submitted is None:
            self._submitted = job_from_json(self.row, self.submit_s)
        return self._submitted


@dataclass(slots=True)
class LiveNode:
    """A node that ever joined.

    Attributes
    ----------
    devices : list of [kind, memory_bytes]
    lost : bool
        Whether it was silent for too long; until it reports again.
    lost_s : float
        When it was found to be.
    """

    name: str
    agent_id: str
    devices: list[list[Any]]
    drained: bool = False
    lost: bool = False
    lost_s: float = 0.0

    @property
    def kinds(self) -> list[tuple[str, int]]:
        """Kind and bytes of memory of each device."""
        return [(kind, memory_bytes) for kind, memory_bytes in self.devices]


@dataclass(slots=True)
class ReplayedState:
    """Jobs and nodes, in the order in which they came; changed by ``apply`` alone.

    Attributes
    ----------
    at_node : dict of str to dict of str to LiveJob
        Jobs that each node has, or is to have.
    now_s : float
        Time of the last record.
    over : dict of str to None
        Jobs that are, those first that have been for longest.
    count : int
        Jobs that were ever submitted.
    attempts : int
        The last attempt of any job that was forgotten.
    lease_s : float
        The longest that a node may go by.
    cluster_id : str
        Of this journal alone.
    stages : Counter of Stage
        Jobs that are in each.
    unfinished : dict of str to (int, int)
        By owner, the number and the bytes of its jobs that have not ended.
    touched : set of str
        Keys of the rows that changed since :meth:`changed` was asked for.
    """

    jobs: dict[str, LiveJob] = field(default_factory=dict)
    nodes: dict[str, LiveNode] = field(default_factory=dict)
    at_node: dict[str, dict[str, LiveJob]] = field(default_factory=dict)
    over: dict[str, None] = field(default_factory=dict)
    clock: ClockSet | None = None
    now_s: float = 0.0
    count: int = 0
    attempts: int = 0
    lease_s: float = 0.0
    cluster_id: str = ""
    stages: Counter[Stage] = field(default_factory=Counter)
    unfinished: dict[str, tuple[int, int]] = field(default_factory=dict)
    touched: set[str] = field(default_factory=set, compare=False)

    def apply(self, record: Record) -> None:
        """Apply one record, after all before it."""
        self.now_s = max(self.now_s, record.time_s)
        self.touched.update(_keys(record))
        match record:
            case Submitted():
                self._submit(record)
            case Pruned():
                self._forget(record)
            case NodeJoined() | NodeDrained() | NodeLost():
                self._node(record)
            case ClockSet():
                self.clock = record
            case ClusterCreated():
                self.cluster_id = record.cluster_id
            case LeaseChanged():
                self.lease_s = record.lease_s
            case _:
                self._job(self.jobs[record.job_id], record)

    def _submit(self, record: Submitted) -> None:
        job = self.jobs[record.job_id] = LiveJob(
            record.job_id,
            record.job,
            record.time_s,
            record.time_unix_s,
            record.time_s,
            self.count,
            record.owner,
            record.run_as,
            record.size_bytes,
            attempt=self.attempts,
            attempt_offset=self.attempts,
        )
        self._count_unfinished(job, 1)
        self.count += 1
        self.stages[Stage.WAITING] += 1

    def _forget(self, record: Pruned) -> None:
        for job_id in record.job_ids:
            del self.over[job_id]
            job = self.jobs.pop(job_id)
            self.attempts = max(self.attempts, job.attempt)
            self.stages[job.stage] -= 1
        for name in record.nodes:
            del self.nodes[name]
            self.at_node.pop(name, None)

    def _node(self, record: NodeJoined | NodeDrained | NodeLost) -> None:
        match record:
            case NodeJoined():
                known = self.nodes.get(record.node)
                drained = known.drained if known else False
                self.nodes[record.node] = LiveNode(
                    record.node, record.agent_id, record.devices, drained
                )
            case NodeDrained():
                self.nodes[record.node].drained = record.drained
            case NodeLost():
                node = self.nodes[record.node]
                node.lost, node.lost_s = True, record.time_s

    def _job(self, job: LiveJob, record: Placed | Started | Stopping | Requeued | Ended) -> None:
        match record:
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
                self._to(job, Stage.PLACED, record.time_s)
            case Started():
                if job.first_start_s is None:
                    job.first_start_s, job.started_unix_s = record.time_s, record.time_unix_s
                self._to(job, Stage.RUNNING, record.time_s)
            case Stopping():
                job.reason, job.cancel = record.reason, record.cancel
                self._to(job, Stage.LEAVING, record.time_s)
            case Requeued():
                job.reason, job.saved = record.reason, max(job.saved, record.saved)
                job.ran_s += record.ran_s
                job.allocations = record.allocations
                job.overflows += record.overflowed
                job.failures += record.failed
                job.small_bytes = max(job.small_bytes, record.small_bytes)
                self._to(job, Stage.WAITING, record.time_s)
            case Ended():
                job.reason, job.ended_unix_s = record.reason, record.time_unix_s
                job.allocations = record.allocations or job.allocations
                job.ran_s += record.ran_s
                self._to(job, Stage(record.stage), record.time_s)

    def _to(self, job: LiveJob, stage: Stage, time_s: float) -> None:
        if job.stage is Stage.WAITING:
            job.waited_s += time_s - job.since_s
        self.stages[job.stage] -= 1
        self.stages[stage] += 1
        job.stage, job.since_s = stage, time_s
        if stage in AT_NODE:
            self.at_node.setdefault(job.node, {})[job.job_id] = job
        else:
            there = self.at_node.get(job.node, {})
            there.pop(job.job_id, None)
            if not there:
                self.at_node.pop(job.node, None)
        if stage in OVER:
            self.over[job.job_id] = None
            self._count_unfinished(job, -1)

    def _count_unfinished(self, job: LiveJob, sign: int) -> None:
        jobs, size_bytes = self.unfinished.get(job.owner, (0, 0))
        left = jobs + sign, size_bytes + sign * job.size_bytes
        if left[0]:
            self.unfinished[job.owner] = left
        else:
            self.unfinished.pop(job.owner, None)

    # As rows of a snapshot ------------------------------------------------------------------

    def changed(self) -> dict[str, dict[str, Any] | None]:
        """Rows of a snapshot that are otherwise than when this was last asked for; None: gone."""
        rows = {key: self._row(key) for key in sorted(self.touched)}
        self.touched.clear()
        return rows | {"now": {name: getattr(self, name) for name in _COUNTS}}

    def _row(self, key: str) -> dict[str, Any] | None:
        what, _, name = key.partition(" ")
        if what == "job":
            job = self.jobs.get(name)
            if job is None:
                return None
            return {name: getattr(job, name) for name in LiveJob.__slots__ if name[0] != "_"}
        found = self.nodes.get(name) if what == "node" else self.clock
        return None if found is None else asdict(found)

    def _read_row(self, key: str, row: Mapping[str, Any]) -> None:
        if key.startswith("job "):
            job = LiveJob(**{**row, "stage": Stage(row["stage"])})
            self.jobs[job.job_id] = job
            if job.stage in AT_NODE:
                self.at_node.setdefault(job.node, {})[job.job_id] = job
        elif key.startswith("node "):
            self.nodes[row["name"]] = LiveNode(**row)
        elif key == "clock":
            self.clock = ClockSet(**row)
        elif key == "now":
            for name in _COUNTS:
                setattr(self, name, row[name])

    @classmethod
    def of_rows(cls, rows: Mapping[str, Mapping[str, Any]]) -> ReplayedState:
        """Return the state whose rows :meth:`changed` returned, all taken together."""
        book = cls()
        for key, row in rows.items():
            book._read_row(key, row)
        book.stages.update(job.stage for job in book.jobs.values())
        for job in book.jobs.values():
            if job.stage not in OVER:
                book._count_unfinished(job, 1)
        over = (job for job in book.jobs.values() if job.stage in OVER)
        book.over = {job.job_id: None for job in sorted(over, key=lambda job: job.since_s)}
        book.jobs = dict(sorted(book.jobs.items(), key=lambda item: item[1].number))
        return book


def _keys(record: Record) -> list[str]:
    """Keys of the rows that a record changes."""
    match record:
        case NodeJoined() | NodeDrained() | NodeLost():
            return [f"node {record.node}"]
        case ClockSet():
            return ["clock"]
        case LeaseChanged() | ClusterCreated():
            return []
        case Pruned():
            gone = [f"job {job_id}" for job_id in record.job_ids]
            return gone + [f"node {name}" for name in record.nodes]
        case _:
            return [f"job {record.job_id}"]
