"""State transitions of the controller. Pure: reads no clock and does no I/O.

Every change of the replayed state is a journal record. Methods return records; their caller writes
them to the journal and then applies them. State that only agents know is in ``nodes``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from random import Random

from presage.errors import ForbiddenError, InvalidJobError, OverloadedError, UnknownJobError
from presage.schedulers.core.backend import reconcile
from presage.schedulers.core.cluster import Cluster
from presage.schedulers.core.forecasts import Forecasts
from presage.schedulers.core.policy import Policy
from presage.schedulers.live.controller.agents_backend import AgentsBackend
from presage.schedulers.live.controller.devices import node_availability
from presage.schedulers.live.controller.devices.signals import (
    acknowledged_number,
    excuse_tasks,
    failed_devices,
    health_record,
)
from presage.schedulers.live.controller.devices.withdrawal import (
    devices_of,
    drain_device,
    find_device,
    leave_devices,
    withdrawn_devices,
)
from presage.schedulers.live.controller.elastic.elastic_jobs import ElasticJobs
from presage.schedulers.live.controller.elastic.leader_report import LeaderReport
from presage.schedulers.live.controller.elastic.members import (
    check_job,
    job_of_task,
    without_node,
)
from presage.schedulers.live.controller.journal.records import (
    DeviceDrained,
    Ended,
    HealthReported,
    LeaseChanged,
    NodeDrained,
    NodeJoined,
    NodeLost,
    PriorityChanged,
    Pruned,
    Record,
    Requeued,
    Started,
    Stopping,
    Submitted,
)
from presage.schedulers.live.controller.node_commands import (
    Pace,
    SentCommands,
    make_pace,
    task_command,
)
from presage.schedulers.live.controller.operations.dependencies import check_dependencies
from presage.schedulers.live.controller.operations.quotas import check_quotas
from presage.schedulers.live.controller.operations.time_limits import overdue_records
from presage.schedulers.live.controller.ownership import check_owner, owns
from presage.schedulers.live.controller.replayed_state import (
    AT_NODE,
    ENDED,
    LiveJob,
    LiveNode,
    ReplayedState,
    Stage,
)
from presage.schedulers.live.controller.scheduling_view import SchedulingView
from presage.schedulers.live.protocol.node_devices import make_cluster, part_sizes
from presage.schedulers.live.protocol.submitted_job import SubmittedJob
from presage.schedulers.live.protocol.wire import to_json, write_job
from presage.schedulers.v1 import cluster_pb2 as pb
from presage.serving.authentication.callers import Caller

_ADMIN = Caller("", frozenset({"admin"}))  # without authentication
MAX_ENDED_JOBS = 10_000
_MAX_ID = 128  # characters of a device's id
LOST_NODE_RETENTION_S = 86_400.0  # until a lost node is removed
END_S = 10.0  # to end jobs after a lease and their grace periods


@dataclass(slots=True)
class ReportedNode:
    """Last report of an agent.

    Attributes
    ----------
    reported_s : float
        Time of the report; before the first one, the start of the controller.
    report : NodeReport or None
    tasks : dict of str to Task
        Tasks of the report that are current attempts of their jobs.
    ended : list of TaskName
        Ended tasks that are on the controller's disk: the agent may forget them.
    signals_number : int
        Health signals of the agent up to this number are acknowledged.
    is_settled : bool
        Whether the same report would change nothing but the time.
    has_current_commands : bool
        Whether the node's last commands are its desired state.
    """

    reported_s: float
    report: pb.NodeReport | None = None
    tasks: dict[str, pb.Task] = field(default_factory=dict)
    ended: list[pb.TaskName] = field(default_factory=list)
    signals_number: int = 0
    is_settled: bool = False
    has_current_commands: bool = False


class Core:
    """Jobs and nodes of a cluster, scheduled by a policy.

    Parameters
    ----------
    forecasts : callable
        Returns current forecasts for a cluster, at a time in seconds.
    lease_s : float
        Time for which a node's jobs continue after its last heartbeat.
    suspect_s : float
        Time without a heartbeat after which a node gets no more jobs.
    max_ended_jobs : int
        Number of ended jobs to keep.
    version : int
        Version of the first commands; different at each start of a controller.
    """

    def __init__(
        self,
        state: ReplayedState,
        policy: Policy,
        forecasts: Callable[[Cluster, float], Forecasts],
        *,
        now_s: float,
        lease_s: float,
        suspect_s: float,
        max_ended_jobs: int = MAX_ENDED_JOBS,
        version: int = 1,
        seed: int = 0,
    ) -> None:
        self.state, self.policy = state, policy
        state.take_reviewed()  # from its replay
        self._forecasts = forecasts
        self.lease_s, self._suspect_s, self._max_ended_jobs = lease_s, suspect_s, max_ended_jobs
        self._rng = Random(seed)  # noqa: S311 - it draws no secrets
        self.nodes = {name: ReportedNode(now_s) for name in state.nodes}  # last report first
        self.elastic = ElasticJobs(self.task_at)
        self._sent = SentCommands(version)
        self._with_lease: set[str] = set()  # nodes that have received this controller's lease
        self._view: SchedulingView | None = None
        self._changed_nodes: dict[str, None] = {}  # that the view has to be updated for
        self.wake_s = math.inf
        self.problem = ""  # why the policy's last decision was not applied

    # Users ----------------------------------------------------------------------------------

    def submit(
        self,
        jobs: Sequence[SubmittedJob],
        now_s: float,
        now_unix_s: float,
        caller: Caller = _ADMIN,
        traceparent: str = "",
    ) -> tuple[list[Record], list[str]]:
        """Return the records of new jobs, owned by the caller, and the ids of known ones.

        ``traceparent`` is the trace context of the submission, "" for none.

        Raises
        ------
        InvalidJobError
            Another job, or another caller's, has the id of one of them, or two have the same id, or
            one depends on a job that is unknown or has failed, or on itself, or needs more than its
            user's quota.
        OverloadedError
            A quota of the caller is reached.
        """
        records: list[Submitted] = []
        known: list[str] = []
        submitted_ids: set[str] = set()
        for submitted in jobs:
            job_id, message = submitted.job.job_id, write_job(submitted)
            check_job(submitted.job)
            row, before = to_json(message), self.state.jobs.get(job_id)
            is_same = before is None or (before.owner, before.job_json) == (caller.name, row)
            if job_id in submitted_ids or not is_same:
                raise InvalidJobError(
                    f"job {job_id!r}: another job has the same id; use a unique id for each job"
                )
            submitted_ids.add(job_id)
            if before is None:
                size_bytes = message.ByteSize()
                ownership = caller.name, caller.account, size_bytes
                records.append(Submitted(job_id, row, now_s, now_unix_s, *ownership, traceparent))
            else:
                known.append(job_id)
        self._check_quota(caller, records)
        new = {record.job_id for record in records}
        check_quotas(self.state.users.quotas, new, jobs, self.policy.needs)
        check_dependencies(self.state, new, jobs, caller.name)
        return list(records), known

    def cancel(
        self,
        job_ids: Iterable[str],
        now_s: float,
        now_unix_s: float,
        caller: Caller = _ADMIN,
    ) -> list[Record]:
        """Return the records that cancel jobs.

        Raises
        ------
        UnknownJobError
            One of the jobs does not exist; none is cancelled.
        ForbiddenError
            One of the jobs belongs to another caller; none is cancelled.
        """
        records: list[Record] = []
        for job_id in dict.fromkeys(job_ids):
            try:
                job = self.job(job_id)
            except UnknownJobError as error:
                raise UnknownJobError(f"nothing was cancelled: {error}") from None
            check_owner(caller, job)
            if job.stage is Stage.WAITING:
                records.append(
                    _end_without_run(job, Stage.CANCELLED, "it was cancelled", now_s, now_unix_s)
                )
            elif job.stage in AT_NODE and not (job.cancel and not job.end_stage):
                records.append(Stopping(job_id, job.attempt, "it was cancelled", True, now_s))
        return records

    def cancellable(self, user: str, caller: Caller = _ADMIN) -> list[str]:
        """Return the jobs that have not ended, of a user or with "" of all, that a caller owns.

        Raises
        ------
        ForbiddenError
            The user is another one, and the caller is no administrator.
        """
        if user and user != caller.name and not caller.is_admin:
            raise ForbiddenError(
                f"jobs of {user!r} are not yours, {caller.name!r}; use a token with the role "
                "'admin'"
            )
        return [
            job.job_id
            for job in self.state.jobs.values()
            if job.stage not in ENDED and owns(caller, job) and user in ("", job.message.user)
        ]

    def drain(
        self,
        name: str,
        *,
        undo: bool,
        evict: bool,
        now_s: float,
        by: str = "",
        reason: str = "",
    ) -> list[Record]:
        """Return the records that start or stop draining a node, optionally evicting its jobs.

        A device, as NODE/NUMBER, is always drained with its jobs. Draining a node again with
        another reason changes the reason.

        Parameters
        ----------
        by, reason : str
            Name of the operator, and why; "" if unknown.

        Raises
        ------
        UnknownJobError
            No node of that name has joined, or it has no such device.
        """
        node = self.state.nodes.get(name)
        if node is None:
            owner, _ = find_device(self.state, name)
            tasks = self.nodes[owner.name].tasks
            return drain_device(
                self.state, name, tasks, undo=undo, now_s=now_s, by=by, reason=reason
            )
        records: list[Record] = []
        if node.drained == undo or (not undo and reason and reason != node.drain_reason):
            records.append(NodeDrained(name, not undo, now_s, by, reason))
        if evict and not undo:
            why = f"node {name} is drained"
            records += [
                without_node(job, name, why, now_s)
                if job.members
                else Stopping(job.job_id, job.attempt, why, False, now_s)
                for job in self._jobs_on(name)
                if job.stage is not Stage.LEAVING
                and (not job.members or any(member.node == name for member in job.members))
            ]
        return records

    def jobs_at(self, name: str) -> list[str]:
        """Return the ids of the jobs on a node, or on a device of it, as :meth:`drain` names it."""
        if name in self.state.nodes:
            return [job.job_id for job in self._jobs_on(name)]
        node, device = find_device(self.state, name)
        tasks = self.nodes[node.name].tasks
        return [
            job.job_id
            for job in self._jobs_on(node.name)
            if device in devices_of(job, node.name, tasks.get(job.job_id))
        ]

    def job(self, job_id: str) -> LiveJob:
        """Return a job.

        Raises
        ------
        UnknownJobError
            No job has that id.
        """
        found = self.state.jobs.get(job_id)
        if found is None:
            raise UnknownJobError(
                f"there is no job {job_id!r}, or it ended long ago; `presage cluster ps --all` "
                "lists all jobs"
            )
        return found

    def job_of_log(self, name: str) -> LiveJob:
        """Return the job of a log: of that id, or of a worker ``JOB/mN``."""
        return self.job(name if name in self.state.jobs else job_of_task(name)[0])

    # Agents ---------------------------------------------------------------------------------

    def rejection_reason(self, report: pb.NodeReport) -> str:
        """Return why an agent is rejected; "" if it is accepted.

        It is rejected while another agent has its node's name, until that node is lost, and if its
        devices have another memory size than those of the same kind: policies assume one per kind.
        """
        known = self.state.nodes.get(report.node)
        if known is not None and not known.lost and _is_unchanged(known, report):
            return ""
        if known is not None and known.agent_id not in ("", report.agent_id) and not known.lost:
            return (
                f"another agent has the node name {report.node!r}; use another --node, or wait "
                "until its lease has expired"
            )
        by_kind = self._memory_of({device.kind for device in report.devices}, report.node)
        for device in report.devices:
            memory_bytes, name = by_kind.setdefault(device.kind, (device.memory_bytes, report.node))
            if memory_bytes != device.memory_bytes:
                return (
                    f"its devices of kind {device.kind!r} have {device.memory_bytes} bytes, those "
                    f"of {name!r} {memory_bytes}; set the same size with --memory-gib, or another "
                    "kind with --device"
                )
        return ""

    def _memory_of(self, kinds: set[str], node: str) -> dict[str, tuple[int, str]]:
        """Return the memory of kinds of devices, and a node other than ``node`` that has them."""
        found: dict[str, tuple[int, str]] = {}
        for name, other in self.state.nodes.items():
            if len(found) == len(kinds):
                break
            for kind, memory_bytes in other.devices if name != node and not other.lost else ():
                if kind in kinds:
                    found.setdefault(kind, (memory_bytes, name))
        return found

    def report(self, report: pb.NodeReport, now_s: float, now_unix_s: float) -> list[Record]:
        """Return the records that follow from a report."""
        if report.node in self.nodes:  # until a record of the node or its jobs is applied
            self.nodes[report.node].is_settled = True
        records: list[Record] = []
        withdrawn: dict[int, str] = {}
        known = self.state.nodes.get(report.node)
        if known is None or known.lost or not _is_unchanged(known, report):
            devices = [[device.kind, device.memory_bytes] for device in report.devices]
            records.append(
                NodeJoined(report.node, report.agent_id, devices, now_s, _device_ids(report))
            )
        else:  # its agent repeats its signals until the node has joined
            signals = health_record(self.state, known, report, now_s)
            records += [signals] if signals is not None else []
            failed = failed_devices(self.state, known, signals)
            withdrawn = withdrawn_devices(self.state, known) | failed
            report = excuse_tasks(report, failed)
        return records + self._job_records(report, withdrawn, now_s, now_unix_s)

    def _job_records(
        self, report: pb.NodeReport, withdrawn: Mapping[int, str], now_s: float, now_unix_s: float
    ) -> list[Record]:
        """Return the records of jobs that follow from a report.

        Jobs leave withdrawn devices, unless the report changes them otherwise: the next one counts.
        """
        records: list[Record] = []
        tasks = {(task.job_id, task.attempt): task for task in report.tasks}
        for job in self._jobs_on(report.node):
            task = tasks.get((job.job_id, job.attempt))
            if job.members or job.leaving:
                records += self.elastic.records_of_report(
                    job, report, self._sent, now_s, now_unix_s
                )
            elif task is not None:
                records += self._task_records(job, task, now_s, now_unix_s)
            elif self._sent.has_received(report, job.job_id, job.attempt):
                reason = "its node does not report it any more"
                if job.cancel:
                    records.append(_end_lost(job, reason, now_s, now_unix_s))
                else:
                    records.append(_requeued(job, reason, 0.0, now_s))
        changed = {getattr(one, "job_id", "") for one in records if not isinstance(one, Started)}
        jobs = [job for job in self._jobs_on(report.node) if job.job_id not in changed]
        current = {job.job_id: tasks.get((job.job_id, job.attempt)) for job in jobs}
        records += leave_devices(jobs, report.node, withdrawn, current, now_s)
        return records

    def note_report(self, report: pb.NodeReport, now_s: float) -> bool:
        """Store a report whose records were applied; return whether it may change decisions.

        That is so if the node was not available, or the allocations of its jobs have changed.
        """
        reported = self._move_last(report.node, now_s)
        before = reported.ended, self._signals_of(reported)
        number = acknowledged_number(self.state, report, now_s)
        if reported.report is not None and reported.report.signals_id == report.signals_id:
            number = max(number, reported.signals_number)
        reported.report, reported.signals_number = report, number
        if self._sent.has_sent(report.commands_version):
            self._with_lease.add(report.node)
        reported.tasks, reported.ended = {}, []
        for task in report.tasks:
            if self._is_current_task(task, report.node):
                reported.tasks[task.job_id] = task
            elif task.phase == pb.TASK_ENDED:
                reported.ended.append(pb.TaskName(job_id=task.job_id, attempt=task.attempt))
        if before != (reported.ended, self._signals_of(reported)):
            reported.has_current_commands = False
        is_available = not self.unavailable_reason(report.node, now_s)
        if self._view is None or is_available != self._view.has_node(report.node):
            self._changed_nodes[report.node] = None
        if self._view is None or not self._view.has_node(report.node):
            return is_available
        jobs = self.state.at_node.get(report.node, {})
        changed = self._view.sync_node(report.node, jobs, reported.tasks, now_s)
        return changed or any(job.stage is Stage.PLACED and job.members for job in jobs.values())

    def note_repeat(self, report: pb.NodeReport, now_s: float) -> bool:
        """Note that a node's last report is still true; return whether nothing else follows.

        Else it has to be processed again like a new one. So it is for nodes with workers of elastic
        jobs, whose records also depend on the jobs' leaders and on other nodes.
        """
        reported = self.nodes.get(report.node)
        if reported is None or reported.report is not report or not reported.is_settled:
            return False
        if self._view is None or not self._view.has_node(report.node):
            return False
        if self._has_members(report.node):
            return False
        self._move_last(report.node, now_s)
        return True

    def unsettle(self, node: str) -> None:
        """Process the next report of a node in full, although it is the same as the last one."""
        if node in self.nodes:
            self.nodes[node].is_settled = False

    def _has_members(self, node: str) -> bool:
        """Return whether workers of elastic jobs are, or will be, on a node."""
        here = self.state.at_node.get(node, {})
        return any(job.members or job.leaving for job in here.values())

    def find_lost(self, now_s: float, now_unix_s: float) -> list[Record]:
        """Return the records of nodes that are lost, and of their jobs, which are requeued."""
        records: list[Record] = []
        if self.state.lease_s > self.lease_s and all(
            node.lost or name in self._with_lease for name, node in self.state.nodes.items()
        ):
            records.append(LeaseChanged(self.lease_s, now_s))
        for name, reported in self.nodes.items():
            silent_s = now_s - reported.reported_s
            if silent_s < self.lease_s:  # and so are all after it
                break
            if self.state.nodes[name].lost or silent_s < self.loss_timeout_s(name):
                continue
            records.append(NodeLost(name, now_s))
            reason = f"node {name} has not reported for {silent_s:.0f} s"
            for job in self._jobs_on(name):
                task = reported.tasks.get(job.job_id)
                saved = task.saved if task is not None else 0.0
                if job.members or job.leaving:
                    records += self.elastic.records_of_loss(job, name, reason, now_s, now_unix_s)
                elif job.cancel:
                    records.append(_end_lost(job, reason, now_s, now_unix_s))
                else:
                    records.append(_requeued(job, reason, saved, now_s))
        return records

    def end_due(self, now_s: float, now_unix_s: float) -> list[Record]:
        """Return the records of jobs that exceed their time limit, or whose dependencies failed."""
        jobs = map(self.state.jobs.__getitem__, self.state.gates.broken)
        return [
            *overdue_records(self.state, now_s),
            *(
                _end_without_run(job, Stage.CANCELLED, job.dependency_problem, now_s, now_unix_s)
                for job in jobs
            ),
        ]

    def prune(self, now_s: float) -> list[Record]:
        """Return the record that removes the oldest of too many ended jobs, and old lost nodes."""
        too_many = max(0, len(self.state.ended) - self._max_ended_jobs)
        jobs = list(islice(self.state.ended, too_many))
        nodes = [
            name
            for name, node in self.state.nodes.items()
            if node.lost
            and not node.drained  # it stays drained while it is repaired
            and now_s - node.lost_s > LOST_NODE_RETENTION_S
            and not self.state.at_node.get(name)
        ]
        return [Pruned(jobs, nodes, now_s)] if jobs or nodes else []

    def commands_version(self, name: str) -> int:
        """Return the version of the commands for a node; they are made again if they may differ."""
        reported = self.nodes.get(name)
        if reported is None or not reported.has_current_commands or self._has_members(name):
            return self.commands(name).version
        return self._sent.version_of(name)

    def commands(self, name: str) -> pb.NodeCommands:
        """Return the commands for a node: its complete desired state."""
        reported, jobs = self.nodes.get(name), tuple(self._jobs_on(name))
        node = self.state.nodes.get(name)
        content = pb.NodeCommands(
            tasks=[command for job in jobs for command in self._task_commands(job, name)],
            forget=reported.ended if reported is not None else (),
            lease_s=self.lease_s,
            cluster_id=self.state.cluster_id,
            withdrawn_devices=() if node is None else sorted(withdrawn_devices(self.state, node)),
        )
        if reported is not None and reported.report is not None:
            content.signals_id, content.signals_number = self._signals_of(reported)
        if reported is not None:
            reported.has_current_commands = True
        return self._sent.update(name, content)

    def pace(self) -> Pace:
        """Return how often agents report."""
        return make_pace(len(self.nodes), lease_s=self.lease_s, suspect_s=self._suspect_s)

    # Decisions ------------------------------------------------------------------------------

    def decide(self, now_s: float, now_unix_s: float) -> list[Record]:
        """Return the records of the policy's decision.

        If they are not written, :meth:`discard_decision` must be called.
        """
        view = self.view(now_s)
        self.wake_s = math.inf
        if view is None:
            return []
        limited_s = view.review_limits(self.state, now_s)
        backend = AgentsBackend(self.state, view, now_unix_s)
        decision = reconcile(backend, self.policy, self._rng, now_s)
        is_problem = bool(decision.rejections) and not backend.is_deferred
        self.problem = decision.rejections[0].why if is_problem else ""
        self.wake_s = min(backend.wake_s, limited_s)
        return backend.records

    def view(self, now_s: float) -> SchedulingView | None:
        """Return the policies' view of the available nodes; None if there are none."""
        if self._view is not None and not self._update_view(self._view, now_s):
            self._view = None
        if self._view is None:
            self._view = self._make_view(now_s)
        if self._view is not None:
            self._view.enter_new_jobs()
            users = self.state.users
            self._view.ledger.rank_users(users.use.per_weight(users.quotas, now_s))
        return self._view

    def _update_view(self, view: SchedulingView, now_s: float) -> bool:
        """Update the view for the nodes that have changed; return whether that is possible."""
        if view.quotas is not self.state.users.quotas:
            return False
        updated: list[tuple[LiveNode, bool]] = []
        joined: list[LiveNode] = []
        for name in self._take_changed_nodes(view, now_s):
            node = self.state.nodes.get(name)
            is_available = node is not None and not self.unavailable_reason(name, now_s)
            if node is None or not view.has_devices_of(node):
                if node is not None and is_available and view.can_add(node):
                    joined.append(node)
                elif is_available or view.has_node(name):
                    return False
                else:
                    continue
            updated.append((node, is_available))
        if joined:
            if view.has_many_lost_nodes(self.state):  # else it keeps each node that ever joined
                return False
            view.add_nodes(joined, self.state)
        for node, is_available in updated:
            view.update_node(
                node,
                self.state,
                self.nodes[node.name].tasks,
                now_s,
                is_available=is_available,
                withdrawn=withdrawn_devices(self.state, node),
            )
        if not view.is_representative:
            return False
        forecasts = self._forecasts(view.cluster, now_s)
        if forecasts is not view.forecasts:
            view.renew_forecasts(forecasts, self.state)
        return True

    def _take_changed_nodes(self, view: SchedulingView, now_s: float) -> dict[str, None]:
        """Return the nodes that have changed since the last decision, or have become silent."""
        changed, self._changed_nodes = self._changed_nodes, {}
        for name, reported in self.nodes.items():
            if now_s - reported.reported_s <= self._suspect_s:  # and so have all after it
                break
            if view.has_node(name):
                changed[name] = None
        return changed

    def _make_view(self, now_s: float) -> SchedulingView | None:
        """Return a new view; None if no node is available."""
        self._changed_nodes.clear()
        nodes = self.state.nodes
        up = {name for name in nodes if not self.unavailable_reason(name, now_s)}
        if not up:
            return None
        sizes = {part for name in up for part in part_sizes(nodes[name].kinds)}
        likely = [
            node
            for name, node in nodes.items()
            if name in up or (not node.lost and sizes.issuperset(part_sizes(node.kinds)))
        ]
        view = self._view_of(likely, up, now_s)
        if not view.is_representative:
            view = self._view_of([node for node in likely if node.name in up], up, now_s)
        return view

    def _view_of(self, nodes: Sequence[LiveNode], up: Set[str], now_s: float) -> SchedulingView:
        """Return a view of nodes, of which some are up."""
        cluster = make_cluster((node.name, node.kinds) for node in nodes)
        view = SchedulingView(
            cluster,
            nodes,
            self.policy,
            self._forecasts(cluster, now_s),
            self.state.outages.history(),
            {node.name: withdrawn_devices(self.state, node) for node in nodes},
            {node.name for node in nodes if node.name not in up},
            self.state.users.quotas,
        )
        tasks = {node.name: self.nodes[node.name].tasks for node in nodes}
        view.load(self.state, tasks, now_s)
        self._enter_elastic_progress(view)
        return view

    @property
    def current_view(self) -> SchedulingView | None:
        """View of the last decision; None if it has to be rebuilt."""
        return self._view

    def unavailable_reason(self, name: str, now_s: float) -> str:
        """Return why a node gets no jobs; "" if it does."""
        return self.availability(name, now_s).reason

    def availability(self, name: str, now_s: float) -> node_availability.Availability:
        """Return the state of a node, and why it gets no jobs."""
        node, reported = self.state.nodes[name], self.nodes[name]
        if node.lost:
            return node_availability.lost(now_s - node.lost_s)
        if reported.report is None:
            return node_availability.STARTING
        if not self.is_connected(name, now_s):
            return node_availability.silent(now_s - reported.reported_s)
        if node.drained:
            return node_availability.drained(node.drained_by, node.drain_reason)
        return node_availability.of_report(reported.report, self.state.cluster_id)

    def is_connected(self, name: str, now_s: float) -> bool:
        """Return whether a node's agent has reported within ``suspect_s``."""
        reported = self.nodes[name]
        is_lost = self.state.nodes[name].lost or reported.report is None
        return not is_lost and now_s - reported.reported_s <= self._suspect_s

    def discard_decision(self) -> None:
        """Discard the last decision, whose records could not be written."""
        self._view = None

    def apply(self, records: Iterable[Record]) -> None:
        """Apply records that were written."""
        for record in records:
            nodes = self.nodes_of(record)
            self.state.apply(record)
            for name in nodes | self.nodes_of(record):
                if name in self.nodes:
                    self.nodes[name].is_settled = self.nodes[name].has_current_commands = False
            match record:
                case NodeJoined():
                    # Its report is noted later: until then it must not count as silent.
                    self._move_last(record.node, record.time_s)
                    self._changed_nodes[record.node] = None
                case NodeLost() | NodeDrained() | DeviceDrained() | HealthReported():
                    self._changed_nodes[record.node] = None
                case PriorityChanged():
                    self._changed_nodes |= dict.fromkeys(self.state.jobs[record.job_id].nodes)
                case Pruned():
                    for name in record.nodes:
                        del self.nodes[name]
                        self._sent.forget(name)
                case Ended():
                    self.elastic.forget(record.job_id)
            if self._view is not None:
                self._view.follow(record, self.state)
        for job in self.state.take_reviewed():
            if self._view is not None:
                self._view.review(job, is_open=not self.state.gates.closed_reason(job))

    def nodes_of(self, record: Record) -> set[str]:
        """Return the nodes that a record concerns, as its job is now."""
        nodes = {getattr(record, "node", "")}
        job = self.state.jobs.get(getattr(record, "job_id", ""))
        if job is not None:
            nodes |= {job.node, *job.nodes}
        return nodes - {""}

    # ----------------------------------------------------------------------------------------

    def note_leader(self, job: LiveJob, report: LeaderReport) -> None:
        """Store the report of the leader of an elastic job."""
        first = job.members[0] if job.members else None
        node = self.state.nodes.get(first.node) if first is not None else None
        kind = node.kinds[first.device][0] if node is not None and first is not None else ""
        self.elastic.note_report(job, report, kind)
        if self._view is not None:
            paces_s = self.elastic.paces_s(job.job_id)
            self._view.record_elastic_progress(job, report, paces_s)

    def _enter_elastic_progress(self, view: SchedulingView) -> None:
        for job in self.state.jobs.values():
            report = self.elastic.report_of(job) if job.members else None
            if report is not None:
                view.record_elastic_progress(job, report, self.elastic.paces_s(job.job_id))

    def task_at(self, node: str, task: str) -> pb.Task | None:
        """Return the last report of a node about a task of a current attempt."""
        reported = self.nodes.get(node)
        return None if reported is None else reported.tasks.get(task)

    @staticmethod
    def _signals_of(reported: ReportedNode) -> tuple[str, int]:
        """Return the sequence of an agent's health signals, and the acknowledged number."""
        return (
            "" if reported.report is None else reported.report.signals_id,
            reported.signals_number,
        )

    def _is_current_task(self, task: pb.Task, node: str) -> bool:
        """Return whether a task that a node reports is of the current attempt of its job there."""
        job = self.state.jobs.get(task.job_id) or self.state.jobs.get(job_of_task(task.job_id)[0])
        if job is None or job.stage not in AT_NODE or job.attempt != task.attempt:
            return False
        if job.members or job.leaving:
            return self.elastic.is_current_task(job, task, node)
        return job.node == node

    def _task_commands(self, job: LiveJob, node: str) -> Iterable[pb.TaskCommand]:
        if job.members or job.leaving:
            return self.elastic.commands(job, node, self.state.cluster_id)
        return (task_command(job, self.state.cluster_id),)

    def _check_quota(self, caller: Caller, new: Sequence[Submitted]) -> None:
        """Raise OverloadedError if a caller would exceed the limits of its token."""
        if not new:
            return
        jobs, size_bytes = self.state.unfinished.get(caller.name, (0, 0))
        jobs += len(new)
        size_bytes += sum(record.size_bytes for record in new)
        for count, limit, unit in (
            (jobs, caller.max_jobs, "jobs"),
            (size_bytes, caller.max_bytes, "bytes of jobs"),
        ):
            if limit and count > limit:
                raise OverloadedError(
                    f"quota of {caller.name!r}: it would have {count:,} {unit} that have not "
                    f"ended, and its token allows {limit:,}; retry when some have ended, or ask "
                    "an administrator for a higher limit"
                )

    def _move_last(self, name: str, now_s: float) -> ReportedNode:
        """Return a node, moved behind all nodes that have reported before."""
        reported = self.nodes.pop(name, None) or ReportedNode(now_s)
        reported.reported_s = max(reported.reported_s, now_s)
        self.nodes[name] = reported
        return reported

    def _jobs_on(self, name: str) -> Iterator[LiveJob]:
        return iter(tuple(self.state.at_node.get(name, {}).values()))

    def loss_timeout_s(self, name: str) -> float:
        """Return the time after a node's last report at which all of its tasks have ended."""
        grace_s = max((job.submitted.grace_s for job in self._jobs_on(name)), default=0.0)
        # It may still hold a lease of an earlier controller.
        earlier_lease_s = 0.0 if name in self._with_lease else self.state.lease_s
        lease_s = max(self.lease_s, earlier_lease_s)
        return lease_s + grace_s + END_S

    def _task_records(
        self, job: LiveJob, task: pb.Task, now_s: float, now_unix_s: float
    ) -> Iterator[Record]:
        """Yield the records that follow from the report of a job's current attempt."""
        if job.stage is Stage.PLACED and task.ran_s > 0:
            yield Started(job.job_id, job.attempt, now_s - task.ran_s, now_unix_s - task.ran_s)
        if task.phase != pb.TASK_ENDED:
            return
        result = task.exit
        rows = [[row.device, row.compute_milli, row.memory_bytes] for row in task.allocations]
        ended = partial(_make_ended, job, task, rows, now_s, now_unix_s)
        if result.finished:
            yield ended(Stage.FINISHED, "")
        elif job.cancel:
            yield ended(job.final_stage, job.reason)
        elif result.requested:
            allocations = rows if task.ran_s > 0 else []
            yield _requeued(
                job,
                task.reason or job.reason,
                task.saved,
                now_s,
                task.ran_s,
                allocations=allocations,
            )
        elif result.out_of_memory:
            reason = "it ran out of memory"
            # The first time it was co-located; afterwards its exclusive devices were too small.
            small_bytes = self._min_memory(job, task) if job.overflows > 0 else 0
            if job.overflows > 0 and not self._has_larger_devices(job, small_bytes):
                yield ended(Stage.FAILED, reason)
            else:
                yield _requeued(
                    job, reason, task.saved, now_s, task.ran_s,
                    overflowed=True, small_bytes=small_bytes,
                )  # fmt: skip
        elif result.lost:
            yield _requeued(job, result.description, task.saved, now_s, task.ran_s)
        elif job.failures < job.submitted.retries:
            yield _requeued(job, result.description, task.saved, now_s, task.ran_s, failed=True)
        else:
            yield ended(Stage.FAILED, result.description)

    def _min_memory(self, job: LiveJob, task: pb.Task) -> int:
        """Return the memory of the smallest device of a task."""
        devices = self.state.nodes[job.node].kinds
        sizes = [devices[row.device][1] for row in task.allocations if row.device < len(devices)]
        return min(sizes, default=max((memory for _, memory in devices), default=0))

    def _has_larger_devices(self, job: LiveJob, memory_bytes: int) -> bool:
        """Return whether a node has enough larger devices of kinds that a job accepts."""
        job_spec = job.submitted.job
        nodes = [(node.name, node.kinds) for node in self.state.nodes.values() if not node.lost]
        return any(
            part.memory_bytes > memory_bytes
            and part.devices >= job_spec.gpus
            and (not job_spec.kinds or part.kind in job_spec.kinds)
            for part in (make_cluster(nodes).nodes if nodes else ())
        )


def _end_without_run(
    job: LiveJob, stage: Stage, reason: str, now_s: float, now_unix_s: float
) -> Ended:
    return Ended(job.job_id, job.attempt, stage, reason, 0.0, now_s, now_unix_s)


def _end_lost(job: LiveJob, reason: str, now_s: float, now_unix_s: float) -> Ended:
    """Return the record of a job that was to end, and whose node does not report its end."""
    stage = job.final_stage
    why = reason if stage is Stage.CANCELLED else job.reason
    return _end_without_run(job, stage, why, now_s, now_unix_s)


def _make_ended(
    job: LiveJob,
    task: pb.Task,
    allocations: list[list[int]],
    now_s: float,
    now_unix_s: float,
    stage: Stage,
    reason: str,
) -> Ended:
    """Return the record of a job that ran; its node may report the end long afterwards."""
    ended_s = now_s
    if job.stage is Stage.RUNNING:  # since its process began
        ended_s = min(now_s, job.since_s + task.ran_s)
    time_unix_s = now_unix_s - (now_s - ended_s)
    return Ended(
        job.job_id, job.attempt, stage, reason, task.ran_s, ended_s, time_unix_s, allocations
    )


def _requeued(
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


def _is_unchanged(known: LiveNode, report: pb.NodeReport) -> bool:
    devices = [[device.kind, device.memory_bytes] for device in report.devices]
    return (known.agent_id, known.devices, known.device_ids) == (
        report.agent_id,
        devices,
        _device_ids(report),
    )


def _device_ids(report: pb.NodeReport) -> list[str]:
    """Return the ids of a node's devices; none if no device has one."""
    ids = [device.id[:_MAX_ID] for device in report.devices]
    return ids if any(ids) else []
