"""Elastic jobs: reports of their leaders, and records and commands of their workers' nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

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


class ElasticJobs:
    """Addresses and last reports of the leaders of elastic jobs.

    Parameters
    ----------
    task_at : callable
        Returns the last report of a node about a task, or None.
    """

    def __init__(self, task_at: Callable[[str, str], pb.Task | None]) -> None:
        self._task_at = task_at
        self._addresses: dict[str, tuple[int, pb.ElasticWorker]] = {}
        self._reports: dict[str, LeaderReport] = {}
        self._paces: dict[str, dict[tuple[int, int], float]] = {}

    # Leaders --------------------------------------------------------------------------------

    def set_address(self, job: LiveJob, address: pb.ElasticWorker) -> bool:
        """Set where the leader of a job is; return whether that is new."""
        entry = job.attempt, address
        is_new = self._addresses.get(job.job_id) != entry
        self._addresses[job.job_id] = entry
        return is_new

    def note_report(self, job: LiveJob, report: LeaderReport) -> None:
        """Store a report, and the speed that it contains if all workers of the job train."""
        if report.attempt != job.attempt or job.stage not in AT_NODE:
            return
        self._reports[job.job_id] = report
        if report.per_s > 0 and report.measured_s >= MIN_MEASURED_S:
            training = {name for name, state in report.states.items() if state == "member"}
            at = [one for one in job.members if one.name in training]
            if len(at) == report.size == len(job.members):
                size = report.size, len({member.node for member in at})
                self._paces.setdefault(job.job_id, {})[size] = 1.0 / report.per_s

    def report_of(self, job: LiveJob) -> LeaderReport | None:
        """Return the last report about the current attempt of a job; None if there is none."""
        report = self._reports.get(job.job_id)
        return report if report is not None and report.attempt == job.attempt else None

    def paces_s(self, job_id: str) -> Mapping[tuple[int, int], float]:
        """Return the measured run times of a whole job, by its numbers of devices and nodes."""
        return self._paces.get(job_id, {})

    def forget(self, job_id: str) -> None:
        """Drop what is known of a job that has ended."""
        self._addresses.pop(job_id, None)
        self._reports.pop(job_id, None)
        self._paces.pop(job_id, None)

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
        return records + records_of_ends(job, ends, saved, now_s, now_unix_s)

    def records_of_loss(
        self, job: LiveJob, node: str, reason: str, now_s: float, now_unix_s: float
    ) -> list[Record]:
        """Return the records that follow from the loss of a node."""
        ends = [MemberEnd(member, reason) for member in members_at(job, node)]
        return records_of_ends(job, ends, self.saved_fraction(job), now_s, now_unix_s)

    def commands(self, job: LiveJob, node: str, cluster_id: str) -> Iterator[pb.TaskCommand]:
        """Yield the commands of a node for its workers of a job."""
        attempt, address = self._addresses.get(job.job_id, (0, None))
        for member in members_at(job, node):
            command = task_command(job, cluster_id)
            command.job.job_id, command.job.gpus = task_id(job, member), 1
            for name in ("min_gpus", "max_gpus", "features"):  # without features, no outcome
                command.job.ClearField(name)
            command.allocations.extend(write_allocations([member.allocation]))
            if address is not None and attempt == job.attempt:
                command.worker.CopyFrom(address)
            command.worker.job_id, command.worker.name = job.job_id, member.name
            command.worker.leader_job = leader_job(job)
            if member in job.leaving and not command.end_reason:
                command.end_reason = job.sizes[-1][2] or "its job is resized"
            if job.is_complete and not command.end_reason and self._is_unknown(job, member):
                command.end_reason = "its job is complete"  # it would wait for the leader
            yield command

    def _is_unknown(self, job: LiveJob, member: Member) -> bool:
        """Return whether the leader of a job has reported, and has not seen one of its workers."""
        leader = self.report_of(job)
        return leader is not None and member.name not in leader.states

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
