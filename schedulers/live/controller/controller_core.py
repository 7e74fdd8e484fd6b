"""The controller's core: what follows from what users and agents say. No clock, socket or disk.

Whatever changes the book is a record first. A method gives records; who called it writes them to
the journal, and then has them applied. What agents alone know is in ``nodes``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from random import Random
from typing import NamedTuple

from presage.errors import InvalidJobError, OverloadedError, UnknownJobError
from presage.schedulers.core.backend import reconcile
from presage.schedulers.core.cluster import Cluster
from presage.schedulers.core.forecasts import Forecasts
from presage.schedulers.core.policy import Policy
from presage.schedulers.live.controller.agents_backend import AgentsBackend
from presage.schedulers.live.controller.journal.records import (
    Ended,
    LeaseChanged,
    NodeDrained,
    NodeJoined,
    NodeLost,
    Pruned,
    Record,
    Requeued,
    Started,
    Stopping,
    Submitted,
)
from presage.schedulers.live.controller.ownership import check_owner
from presage.schedulers.live.controller.replayed_state import (
    AT_NODE,
    LiveJob,
    LiveNode,
    ReplayedState,
    Stage,
)
from presage.schedulers.live.controller.scheduling_view import SchedulingView
from presage.schedulers.live.protocol.node_devices import make_cluster
from presage.schedulers.live.protocol.submitted_job import SubmittedJob
from presage.schedulers.live.protocol.wire import to_json, write_allocations, write_job
from presage.schedulers.v1 import cluster_pb2 as pb
from presage.serving.authentication.callers import Caller

_ADMIN = Caller("", frozenset({"admin"}))  # callers are not authenticated
MOST_OVER = 10_000
LOST_S = 86_400.0  # after which a node that was lost is forgotten
END_S = 10.0  # from the end of a lease, and of the time that jobs may take to save, to their deaths


@dataclass(slots=True)
class SeenNode:
    """What an agent said last.

    Attributes
    ----------
    reported_s : float
        When it did; when the controller began, of one that it has not heard of yet.
    report : NodeReport or None
    tasks : dict of str to Task
        Of the report, those that are the current attempts of their jobs.
    ended : list of TaskName
        Tasks that are over and on the controller's disk: it may forget them.
    """

    reported_s: float
    report: pb.NodeReport | None = None
    tasks: dict[str, pb.Task] = field(default_factory=dict)
    ended: list[pb.TaskName] = field(default_factory=list)


class _Orders(NamedTuple):
    """What a node was told last, and in which version each of its tasks was first."""

    version: int
    content: pb.NodeCommands
    since: dict[tuple[str, int], int]


class Core:
    """A cluster under a policy.

    Parameters
    ----------
    forecasts : callable
        Fresh forecasts for a cluster, at a time.
    lease_s : float
        How long after its last heartbeat a node's jobs run on.
    suspect_s : float
        After so long without a heartbeat a node is given no more jobs.
    most_over : int
        Of the jobs that are over so many are kept.
    version : int
        Of the first orders; another one each time that a controller begins.
    """

    def __init__(
        self,
        book: ReplayedState,
        policy: Policy,
        forecasts: Callable[[Cluster, float], Forecasts],
        *,
        now_s: float,
        lease_s: float,
        suspect_s: float,
        most_over: int = MOST_OVER,
        version: int = 1,
        seed: int = 0,
    ) -> None:
        self.book, self.policy = book, policy
        self._forecasts = forecasts
        self.lease_s, self._suspect_s, self._most_over = lease_s, suspect_s, most_over
        self._rng = Random(seed)  # noqa: S311 - it draws no secrets
        self.nodes = {name: SeenNode(now_s) for name in book.nodes}
        self._orders: dict[str, _Orders] = {}
        self._first_version = self._version = version
        self._obedient: set[str] = set()  # nodes that have heard of this controller's lease
        self._view: SchedulingView | None = None
        self.wake_s = math.inf
        self.problem = ""  # why the policy's last decision was not carried out

    # Users ----------------------------------------------------------------------------------

    def submit(
        self,
        jobs: Sequence[SubmittedJob],
        now_s: float,
        now_unix_s: float,
        caller: Caller = _ADMIN,
    ) -> tuple[list[Record], list[str]]:
        """Take jobs in, which belong to their caller; also those that it submitted before.

        Raises
        ------
        InvalidJobError
            A job of that id is another one or another caller's, or is twice among these.
        OverloadedError
            A quota of the caller is reached.
        """
        records: list[Submitted] = []
        known: list[str] = []
        seen: set[str] = set()
        for submitted in jobs:
            job_id, message = submitted.job.job_id, write_job(submitted)
            row, before = to_json(message), self.book.jobs.get(job_id)
            is_same = before is None or (before.owner, before.row) == (caller.name, row)
            if job_id in seen or not is_same:
                raise InvalidJobError(
                    f"job {job_id!r} is another one that was submitted before; give every job an "
                    "id of its own"
                )
            seen.add(job_id)
            if before is None:
                size_bytes = message.ByteSize()
                of_caller = caller.name, caller.account, size_bytes
                records.append(Submitted(job_id, row, now_s, now_unix_s, *of_caller))
            else:
                known.append(job_id)
        self._check_quota(caller, records)
        return list(records), known

    def cancel(
        self,
        job_ids: Iterable[str],
        now_s: float,
        now_unix_s: float,
        caller: Caller = _ADMIN,
    ) -> list[Record]:
        """End jobs for good.

        Raises
        ------
        UnknownJobError
            One of them was never submitted: then none is ended.
        ForbiddenError
            One of them belongs to another caller: then none is ended.
        """
        records: list[Record] = []
        for job_id in dict.fromkeys(job_ids):
            try:
                job = self.job(job_id)
            except UnknownJobError as error:
                raise UnknownJobError(f"nothing was cancelled: {error}") from None
            check_owner(caller, job)
            if job.stage is Stage.WAITING:
                records.append(_ended(job, Stage.CANCELLED, "it was cancelled", now_s, now_unix_s))
            elif job.stage in AT_NODE and not job.cancel:
                records.append(Stopping(job_id, job.attempt, "it was cancelled", True, now_s))
        return records

    def drain(self, name: str, *, undo: bool, evict: bool, now_s: float) -> list[Record]:
        """Give a node no jobs any more, or some again; those that are there may be sent away.

        Raises
        ------
        UnknownJobError
            No node of that name ever joined.
        """
        node = self.book.nodes.get(name)
        if node is None:
            known = ", ".join(sorted(self.book.nodes)) or "none has joined"
            raise UnknownJobError(f"there is no node {name!r}; known are: {known}")
        records: list[Record] = []
        if node.drained == undo:
            records.append(NodeDrained(name, not undo, now_s))
        if evict and not undo:
            reason = f"node {name} is drained"
            records += [
                Stopping(job.job_id, job.attempt, reason, False, now_s)
                for job in self._at(name)
                if job.stage is not Stage.LEAVING
            ]
        return records

    def job(self, job_id: str) -> LiveJob:
        """A job that was submitted.

        Raises
        ------
        UnknownJobError
            There is none of that id.
        """
        found = self.book.jobs.get(job_id)
        if found is None:
            raise UnknownJobError(
                f"there is no job {job_id!r}, or it has long been over; `presage cluster ps --all` "
                "lists"
            )
        return found

    # Agents ---------------------------------------------------------------------------------

    def refuses(self, report: pb.NodeReport) -> str:
        """Why an agent is not let in; "" if it is.

        Another one of its name is there, until the node is lost; or its devices cannot be told from
        others', of which policies know one memory a kind.
        """
        known = self.book.nodes.get(report.node)
        if known is not None and not known.lost and _is_as_before(known, report):
            return ""
        if known is not None and known.agent_id not in ("", report.agent_id) and not known.lost:
            return (
                f"another agent is node {report.node!r}; give this one another name, or wait until "
                "the other's lease is over"
            )
        of_others = {
            kind: (memory_bytes, name)
            for name, node in self.book.nodes.items()
            if name != report.node and not node.lost
            for kind, memory_bytes in node.kinds
        }
        for device in report.devices:
            there, name = of_others.setdefault(device.kind, (device.memory_bytes, report.node))
            if there != device.memory_bytes:
                return (
                    f"its devices of kind {device.kind!r} have {device.memory_bytes} bytes, those "
                    f"of {name!r} {there}; say the same with --memory-gib, or name them as another "
                    "kind with --device"
                )
        return ""

    def report(self, report: pb.NodeReport, now_s: float, now_unix_s: float) -> list[Record]:
        """What follows from what an agent says, for the journal."""
        records: list[Record] = []
        known = self.book.nodes.get(report.node)
        if known is None or known.lost or not _is_as_before(known, report):
            devices = [[one.kind, one.memory_bytes] for one in report.devices]
            records.append(NodeJoined(report.node, report.agent_id, devices, now_s))
        tasks = {(task.job_id, task.attempt): task for task in report.tasks}
        for job in self._at(report.node):
            task = tasks.get((job.job_id, job.attempt))
            if task is not None:
                records += self._progressed(job, task, now_s, now_unix_s)
            elif self._knew(report, job):
                reason = "its node does not know it any more"
                if job.cancel:
                    records.append(_ended(job, Stage.CANCELLED, reason, now_s, now_unix_s))
                else:
                    records.append(_returned(job, reason, 0.0, now_s))
        return records

    def heard(self, report: pb.NodeReport, now_s: float) -> bool:
        """Remember a report, once what follows from it was applied; whether it matters to others.

        It does if the node was not up, or its jobs stand otherwise than they were known to.
        """
        seen = self.nodes.setdefault(report.node, SeenNode(now_s))
        seen.reported_s, seen.report = now_s, report
        if self._first_version < report.commands_version <= self._version:
            self._obedient.add(report.node)
        seen.tasks, seen.ended = {}, []
        for task in report.tasks:
            job = self.book.jobs.get(task.job_id)
            current = job is not None and job.node == report.node and job.attempt == task.attempt
            if job is not None and current and job.stage in AT_NODE:
                seen.tasks[task.job_id] = task
            elif task.phase == pb.TASK_ENDED:
                seen.ended.append(pb.TaskName(job_id=task.job_id, attempt=task.attempt))
        if self._view is None or not self._view.has(report.node):
            return not self.not_up(report.node, now_s)
        jobs = self.book.at_node.get(report.node, {})
        return self._view.settle(report.node, jobs, seen.tasks, now_s)

    def silent(self, now_s: float, now_unix_s: float) -> list[Record]:
        """What follows from what agents do not say: nodes are lost, and their jobs wait again."""
        records: list[Record] = []
        if self.book.lease_s > self.lease_s and all(
            node.lost or name in self._obedient for name, node in self.book.nodes.items()
        ):
            records.append(LeaseChanged(self.lease_s, now_s))
        for name, node in self.book.nodes.items():
            if node.lost or now_s - self.nodes[name].reported_s < self.patience_s(name):
                continue
            records.append(NodeLost(name, now_s))
            for job in self._at(name):
                task = self.nodes[name].tasks.get(job.job_id)
                saved = task.saved if task is not None else 0.0
                reason = (
                    f"node {name} was not heard of for {now_s - self.nodes[name].reported_s:.0f} s"
                )
                if job.cancel:
                    records.append(_ended(job, Stage.CANCELLED, reason, now_s, now_unix_s))
                else:
                    records.append(_returned(job, reason, saved, now_s))
        return records

    def forgets(self, now_s: float) -> list[Record]:
        """Jobs that have been over for longest, where too many are known; nodes long lost."""
        too_many = max(0, len(self.book.over) - self._most_over)
        jobs = list(islice(self.book.over, too_many))
        nodes = [
            name
            for name, node in self.book.nodes.items()
            if node.lost
            and not node.drained  # it stays so, for whoever repairs it
            and now_s - node.lost_s > LOST_S
            and not self.book.at_node.get(name)
        ]
        return [Pruned(jobs, nodes, now_s)] if jobs or nodes else []

    def orders(self, name: str) -> pb.NodeCommands:
        """All that a node is to have."""
        seen, jobs = self.nodes.get(name), tuple(self._at(name))
        content = pb.NodeCommands(
            tasks=[self._order(job) for job in jobs],
            forget=seen.ended if seen is not None else (),
            lease_s=self.lease_s,
            cluster_id=self.book.cluster_id,
        )
        last = self._orders.get(name)
        if last is None or last.content != content:
            self._version += 1
            known = {} if last is None else last.since
            since = {
                (job.job_id, job.attempt): known.get((job.job_id, job.attempt), self._version)
                for job in jobs
            }
            last = self._orders[name] = _Orders(self._version, content, since)
        orders = pb.NodeCommands(version=last.version)
        orders.MergeFrom(last.content)
        return orders

    # Deciding -------------------------------------------------------------------------------

    def decide(self, now_s: float, now_unix_s: float) -> list[Record]:
        """What the policy wants, for the journal.

        If it is not written, :meth:`undo` has to be called.
        """
        view = self.view(now_s)
        self.wake_s = math.inf
        if view is None:
            return []
        backend = AgentsBackend(self.book, view, now_unix_s)
        decision = reconcile(backend, self.policy, self._rng, now_s)
        self.problem = decision.rejections[0].why if decision.rejections else ""
        self.wake_s = backend.wake_s
        return backend.records

    def view(self, now_s: float) -> SchedulingView | None:
        """The nodes that are up, as policies see them; None if there is none."""
        up = [node for name, node in self.book.nodes.items() if not self.not_up(name, now_s)]
        if not up:
            self._view = None
        elif self._view is None or not self._same(self._view, up, now_s):
            cluster = make_cluster((node.name, node.kinds) for node in up)
            forecasts = self._forecasts(cluster, now_s)
            self._view = SchedulingView(cluster, up, self.policy, forecasts)
            tasks = {node.name: self.nodes[node.name].tasks for node in up}
            self._view.fill(self.book, tasks, now_s)
        if self._view is not None:
            self._view.take_in()
        return self._view

    def not_up(self, name: str, now_s: float) -> str:
        """Why a node is given no jobs; "" if it is."""
        node, seen = self.book.nodes[name], self.nodes[name]
        if node.lost:
            return "it was lost"
        if seen.report is None:
            return "its agent has not reported yet"
        if not self.is_heard(name, now_s):
            return f"its agent is silent for {now_s - seen.reported_s:.0f} s"
        if node.drained:
            return "it is drained"
        obeyed = seen.report.cluster_id
        if obeyed and obeyed != self.book.cluster_id:
            return f"its agent obeys another cluster, {obeyed}, until its tasks of it are over"
        return f"its agent can start no job: {seen.report.problem}" if seen.report.problem else ""

    def is_heard(self, name: str, now_s: float) -> bool:
        """Whether a node's agent has reported of late."""
        seen = self.nodes[name]
        lost = self.book.nodes[name].lost or seen.report is None
        return not lost and now_s - seen.reported_s <= self._suspect_s

    def undo(self) -> None:
        """What was decided could not be written: it is as if it had not been."""
        self._view = None

    def apply(self, records: Iterable[Record]) -> None:
        """What was written is so."""
        for record in records:
            self.book.apply(record)
            match record:
                case NodeJoined():
                    self.nodes.setdefault(record.node, SeenNode(record.time_s))
                case NodeLost() | NodeDrained():
                    self._view = None
                case Pruned():
                    for name in record.nodes:
                        del self.nodes[name]
                        self._orders.pop(name, None)
                case Submitted() | Requeued():
                    if self._view is not None:
                        self._view.wait(self.book.jobs[record.job_id])
                case Ended():
                    if self._view is not None:
                        self._view.over(self.book.jobs[record.job_id])
                case Stopping():
                    if self._view is not None:
                        self._view.forget(record.job_id)

    # ----------------------------------------------------------------------------------------

    def _check_quota(self, caller: Caller, new: Sequence[Submitted]) -> None:
        """Raise OverloadedError where a caller would have more than its token allows."""
        if not new:
            return
        jobs, size_bytes = self.book.unfinished.get(caller.name, (0, 0))
        jobs += len(new)
        size_bytes += sum(record.size_bytes for record in new)
        for count, most, what in (
            (jobs, caller.max_jobs, "jobs"),
            (size_bytes, caller.max_bytes, "bytes of jobs"),
        ):
            if most and count > most:
                raise OverloadedError(
                    f"quota of {caller.name!r}: with these it would have {count:,} {what} that "
                    f"have not ended, and its token allows {most:,}; submit again when some have "
                    "ended, or ask an administrator for more"
                )

    def _same(self, view: SchedulingView, up: Sequence[LiveNode], now_s: float) -> bool:
        same = view.nodes == {node.name: node.devices for node in up}
        return same and view.forecasts is self._forecasts(view.cluster, now_s)

    def _at(self, name: str) -> Iterator[LiveJob]:
        return iter(tuple(self.book.at_node.get(name, {}).values()))

    def patience_s(self, name: str) -> float:
        """From a node's last word to when all that it ran is surely over."""
        grace_s = max((job.submitted.grace_s for job in self._at(name)), default=0.0)
        # It may still go by what an earlier controller promised it.
        lease_s = self.lease_s if name in self._obedient else max(self.lease_s, self.book.lease_s)
        return lease_s + grace_s + END_S

    def _knew(self, report: pb.NodeReport, job: LiveJob) -> bool:
        """Whether an agent had been told of a job when it reported."""
        orders = self._orders.get(report.node)
        if orders is None:
            return False
        since = orders.since.get((job.job_id, job.attempt))
        return since is not None and since <= report.commands_version <= orders.version

    def _progressed(
        self, job: LiveJob, task: pb.Task, now_s: float, now_unix_s: float
    ) -> Iterator[Record]:
        """What follows from what is said of a job's current attempt."""
        if job.stage is Stage.PLACED and task.ran_s > 0:
            yield Started(job.job_id, job.attempt, now_s - task.ran_s, now_unix_s - task.ran_s)
        if task.phase != pb.TASK_ENDED:
            return
        how = task.exit
        rows = [[one.device, one.compute_milli, one.memory_bytes] for one in task.allocations]
        over = partial(_over, job, task, rows, now_s, now_unix_s)
        if how.finished:
            yield over(Stage.FINISHED, "")
        elif job.cancel:
            yield over(Stage.CANCELLED, job.reason)
        elif how.requested:
            had = rows if task.ran_s > 0 else []
            yield _returned(
                job, task.reason or job.reason, task.saved, now_s, task.ran_s, allocations=had
            )
        elif how.out_of_memory:
            reason = "it ran out of memory"
            # Before, others were beside it; if it had devices of its own, these are too small.
            small_bytes = self._memory_of(job, task) if job.overflows > 0 else 0
            if job.overflows > 0 and not self._is_larger(job, small_bytes):
                yield over(Stage.FAILED, reason)
            else:
                yield _returned(
                    job, reason, task.saved, now_s, task.ran_s,
                    overflowed=True, small_bytes=small_bytes,
                )  # fmt: skip
        elif how.lost:
            yield _returned(job, how.description, task.saved, now_s, task.ran_s)
        elif job.failures < job.submitted.retries:
            yield _returned(job, how.description, task.saved, now_s, task.ran_s, failed=True)
        else:
            yield over(Stage.FAILED, how.description)

    def _order(self, job: LiveJob) -> pb.TaskCommand:
        leaving = job.stage is Stage.LEAVING
        order = pb.TaskCommand(
            job=_of_leaving(job.message) if leaving else job.message,
            attempt=job.attempt,
            allocations=write_allocations(job.allocations),
            predictions=job.prediction_messages,
            elapsed_s=job.elapsed_s,
            done=job.saved,
            end_reason=(job.reason or "it is to end") if leaving else "",
            discard=leaving and job.cancel,
            exclusive=job.overflows > 0,
            submission_id=f"{self.book.cluster_id}-{job.number}",
            run_as=job.run_as,
        )
        if job.kinds:
            order.job.kinds[:] = job.kinds
        return order

    def _memory_of(self, job: LiveJob, task: pb.Task) -> int:
        """Of the smallest device that a job had."""
        devices = self.book.nodes[job.node].kinds
        had = [devices[one.device][1] for one in task.allocations if one.device < len(devices)]
        return min(had, default=max((memory for _, memory in devices), default=0))

    def _is_larger(self, job: LiveJob, memory_bytes: int) -> bool:
        """Whether some node has as many larger devices as a job needs, which will do for it."""
        wanted = job.submitted.job
        there = [(node.name, node.kinds) for node in self.book.nodes.values() if not node.lost]
        return any(
            part.memory_bytes > memory_bytes
            and part.devices >= wanted.gpus
            and (not wanted.kinds or part.kind in wanted.kinds)
            for part in (make_cluster(there).nodes if there else ())
        )


def _ended(job: LiveJob, stage: Stage, reason: str, now_s: float, now_unix_s: float) -> Ended:
    return Ended(job.job_id, job.attempt, stage, reason, 0.0, now_s, now_unix_s)


def _over(
    job: LiveJob,
    task: pb.Task,
    allocations: list[list[int]],
    now_s: float,
    now_unix_s: float,
    stage: Stage,
    reason: str,
) -> Ended:
    """The end of a job that ran: as its node tells of it, which may be long after."""
    ended_s = now_s
    if job.stage is Stage.RUNNING:  # since its process began
        ended_s = min(now_s, job.since_s + task.ran_s)
    time_unix_s = now_unix_s - (now_s - ended_s)
    return Ended(
        job.job_id, job.attempt, stage, reason, task.ran_s, ended_s, time_unix_s, allocations
    )


def _returned(
    job: LiveJob,
    reason: str,
    saved: float,
    now_s: float,
    ran_s: float = 0.0,
    *,
    overflowed: bool = False,
    failed: bool = False,
    allocations: Sequence[list[int]] = (),
    small_bytes: int = 0,
) -> Requeued:
    return Requeued(
        job.job_id, job.attempt, reason, saved, ran_s, overflowed, failed, now_s, list(allocations),
        small_bytes,
    )  # fmt: skip


def _is_as_before(known: LiveNode, report: pb.NodeReport) -> bool:
    devices = [[one.kind, one.memory_bytes] for one in report.devices]
    return (known.agent_id, known.devices) == (report.agent_id, devices)


def _of_leaving(message: pb.Job) -> pb.Job:
    """As much of a job as is still one: its node has the rest, or is not to run it at all."""
    short = pb.Job()
    short.CopyFrom(message)
    del short.command[1:]
    short.ClearField("environment")
    short.ClearField("features")
    return short
