"""Elastic jobs: reports of their leaders, and records and commands of their workers' nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from presage.schedulers.core.allocation import FULL_DEVICE_MILLI
from presage.schedulers.live.controller.elastic.leader_report import MIN_MEASURED_S, LeaderReport
from presage.schedulers.live.controller.elastic.members import (
    MemberEnd,
    ended_members,
    job_of_task,
    leader_job,
    members_at,
    records_of_ends,
    task_id,
)
from presage.schedulers.live.controller.journal.records import Record, Started
from presage.schedulers.live.controller.node_commands import SentCommands, task_command
from presage.schedulers.live.controller.replayed_state import AT_NODE, LiveJob, Member, Stage
from presage.schedulers.live.protocol.wire import write_allocations
from presage.schedulers.v1 import cluster_pb2 as pb


@dataclass(slots=True)
class _Known:
    """What is known of an elastic job; all but the speeds is of one attempt.

    Attributes
    ----------
    trained : set of str
        Workers that have trained.
    kind : str
        Kind of the devices on which the speeds were measured.
    paces_s : dict of (int, int) to float
        Measured run times of the whole job, by its numbers of devices and nodes.
    """

    attempt: int
    address: pb.ElasticWorker | None = None
    report: LeaderReport | None = None
    trained: set[str] = field(default_factory=set)
    kind: str = ""
    paces_s: dict[tuple[int, int], float] = field(default_factory=dict)


class ElasticJobs:
    """Addresses and last reports of the leaders of elastic jobs.

    Parameters
    ----------
    task_at : callable
        Returns the last report of a node about a task, or None.
    """

    def __init__(self, task_at: Callable[[str, str], pb.Task | None]) -> None:
        self._task_at = task_at
        self._known: dict[str, _Known] = {}

    # Leaders --------------------------------------------------------------------------------

    def set_address(self, job: LiveJob, address: pb.ElasticWorker) -> bool:
        """Set where the leader of a job is; return whether that is new."""
        known = self._of(job)
        is_new, known.address = known.address != address, address
        return is_new

    def note_report(self, job: LiveJob, report: LeaderReport, kind: str) -> None:
        """Store a report, and the speed that it contains if all workers of the job train.

        Parameters
        ----------
        kind : str
            Kind of the devices of the job; speeds on another kind are dropped.
        """
        if report.attempt != job.attempt or job.stage not in AT_NODE:
            return
        known = self._of(job)
        known.report = report
        training = {name for name, state in report.states.items() if state == "member"}
        known.trained |= training
        known.trained |= {name for name, state in report.states.items() if state == "leaving"}
        if report.per_s <= 0 or report.measured_s < MIN_MEASURED_S:
            return
        at = [one for one in job.members if one.name in training]
        is_shared = any(one.compute_milli < FULL_DEVICE_MILLI for one in job.members)
        if is_shared or report.time_s - report.measured_s < job.resized_s:
            return  # the speed is, or may be, slowed down by co-located jobs
        if len(at) == report.size == len(job.members):
            if known.kind != kind:
                known.kind, known.paces_s = kind, {}
            size = report.size, len({member.node for member in at})
            known.paces_s[size] = 1.0 / report.per_s

    def report_of(self, job: LiveJob) -> LeaderReport | None:
        """Return the last report about the current attempt of a job; None if there is none."""
        known = self._known.get(job.job_id)
        return known.report if known is not None and known.attempt == job.attempt else None

    def paces_s(self, job_id: str) -> Mapping[tuple[int, int], float]:
        """Return the measured run times of a whole job, by its numbers of devices and nodes."""
        known = self._known.get(job_id)
        return {} if known is None else known.paces_s

    def forget(self, job_id: str) -> None:
        """Drop what is known of a job that has ended."""
        self._known.pop(job_id, None)

    def _of(self, job: LiveJob) -> _Known:
        """Return what is known of a job; at a new attempt only its speeds are kept."""
        known = self._known.get(job.job_id)
        if known is None:
            known = self._known[job.job_id] = _Known(job.attempt)
        elif known.attempt != job.attempt:
            kept = known.kind, known.paces_s
            known = self._known[job.job_id] = _Known(job.attempt)
            known.kind, known.paces_s = kept
        return known

    def saved_fraction(self, job: LiveJob) -> float:
        """Return the fraction of a job in its last checkpoint, as far as it is known."""
        leader = self.report_of(job)
        tasks = (self._task_at(one.node, task_id(job, one)) for one in _all_members(job))
        known = [task.saved for task in tasks if task is not None]
        return max([*known, job.saved, leader.saved if leader is not None else 0.0])

    # Nodes ----------------------------------------------------------------------------------

    def is_current_task(self, job: LiveJob, task: pb.Task, node: str) -> bool:
        """Return whether a task that a node reports is a worker of a job there."""
        number = job_of_task(task.job_id)[1]
        return any(member.number == number for member in members_at(job, node))

    def records_of_report(
        self,
        job: LiveJob,
        report: pb.NodeReport,
        sent: SentCommands,
        now_s: float,
        now_unix_s: float,
    ) -> list[Record]:
        """Return the records that follow from a node's report of workers of a job."""
        tasks = {task.job_id: task for task in report.tasks if task.attempt == job.attempt}
        here = {member.number: task_id(job, member) for member in members_at(job, report.node)}
        received = frozenset(
            number for number, task in here.items() if sent.has_received(report, task, job.attempt)
        )
        reported = [tasks[task] for task in here.values() if task in tasks]
        saved = max([self.saved_fraction(job), *(task.saved for task in reported)])
        ran_s = max((task.ran_s for task in reported), default=0.0)
        records: list[Record] = []
        if job.stage is Stage.PLACED and ran_s > 0:
            records.append(Started(job.job_id, job.attempt, now_s - ran_s, now_unix_s - ran_s))
        ends = list(ended_members(job, report.node, tasks, received))
        total_s = now_s - job.running_since_s if job.running_since_s else ran_s
        return records + records_of_ends(job, ends, saved, total_s, now_s, now_unix_s)

    def records_of_loss(
        self, job: LiveJob, node: str, reason: str, now_s: float, now_unix_s: float
    ) -> list[Record]:
        """Return the records that follow from the loss of a node."""
        ends = [MemberEnd(member, reason) for member in members_at(job, node)]
        ran_s = now_s - job.running_since_s if job.running_since_s else 0.0
        return records_of_ends(job, ends, self.saved_fraction(job), ran_s, now_s, now_unix_s)

    def commands(self, job: LiveJob, node: str, cluster_id: str) -> Iterator[pb.TaskCommand]:
        """Yield the commands of a node for its workers of a job."""
        address = self._of(job).address
        for member in members_at(job, node):
            command = task_command(job, cluster_id)
            command.job.job_id, command.job.gpus = task_id(job, member), 1
            for name in ("min_gpus", "max_gpus", "features"):  # without features, no outcome
                command.job.ClearField(name)
            command.allocations.extend(write_allocations([member.allocation]))
            if address is not None:
                command.worker.CopyFrom(address)
            command.worker.job_id, command.worker.name = job.job_id, member.name
            command.worker.leader_job = leader_job(job)
            if member in job.leaving and not command.end_reason:
                command.end_reason = "its job continues without it"
            if job.is_complete and not command.end_reason and self._has_not_joined(job, member):
                command.end_reason = "its job is complete"
            yield command

    def _has_not_joined(self, job: LiveJob, member: Member) -> bool:
        """Return whether a worker is known not to have trained: it would wait for a leader."""
        trained = self._of(job).trained
        task = self._task_at(member.node, task_id(job, member))
        return bool(trained) and member.name not in trained and (task is None or task.done < 1)

    def member_states(self, job: LiveJob) -> Iterator[tuple[Member, str]]:
        """Yield the workers of a job, each with its state."""
        leader = self.report_of(job)
        known = {} if leader is None else leader.states
        for member in sorted(_all_members(job)):
            if member in job.leaving or job.stage is Stage.LEAVING:
                yield member, "leaving"
                continue
            task = self._task_at(member.node, task_id(job, member))
            has_process = task is not None and task.ran_s > 0
            yield member, known.get(member.name, "joining" if has_process else "starting")


def _all_members(job: LiveJob) -> Iterable[Member]:
    return (*job.members, *job.leaving)
