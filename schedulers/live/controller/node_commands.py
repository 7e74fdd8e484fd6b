"""Commands for node agents: each node's complete desired state, with a version."""

from __future__ import annotations

from typing import NamedTuple

from presage.schedulers.live.controller.replayed_state import LiveJob, Stage
from presage.schedulers.live.protocol.wire import write_allocations
from presage.schedulers.v1 import cluster_pb2 as pb

HEARTBEATS_PER_S = 1_350.0  # of all nodes together
REPORTS_PER_S = 100.0  # as above, of whole reports of nodes that have not changed
_HEARTBEATS_PER_LEASE = 4  # so that some may be lost
_HEARTBEATS_UNTIL_SUSPECT = 2


class Pace(NamedTuple):
    """Least times between heartbeats of a node, and between its whole reports, in seconds."""

    heartbeat_s: float
    report_s: float


def make_pace(nodes: int, *, lease_s: float, suspect_s: float) -> Pace:
    """Return the pace at which agents report: the slower, the more nodes there are.

    A lease needs heartbeats to last, and a node without them gets no jobs, so their interval has a
    limit. Progress of tasks between whole reports is estimated from the last one.
    """
    longest_s = min(lease_s / _HEARTBEATS_PER_LEASE, suspect_s / _HEARTBEATS_UNTIL_SUSPECT)
    return Pace(min(nodes / HEARTBEATS_PER_S, longest_s), nodes / REPORTS_PER_S)


class _Sent(NamedTuple):
    """Last commands of a node, and the version in which each task first appeared."""

    version: int
    content: pb.NodeCommands
    since: dict[tuple[str, int], int]


class SentCommands:
    """Last commands of each node.

    Parameters
    ----------
    version : int
        Version of the first commands; different at each start of a controller.
    """

    def __init__(self, version: int) -> None:
        self._first_version = self._version = version
        self._sent: dict[str, _Sent] = {}

    def update(self, node: str, content: pb.NodeCommands) -> pb.NodeCommands:
        """Return the commands of a node with their version, a new one if they have changed."""
        last = self._sent.get(node)
        if last is None or last.content != content:
            self._version += 1
            known = {} if last is None else last.since
            tasks = [(command.job.job_id, command.attempt) for command in content.tasks]
            since = {task: known.get(task, self._version) for task in tasks}
            last = self._sent[node] = _Sent(self._version, content, since)
        commands = pb.NodeCommands(version=last.version)
        commands.MergeFrom(last.content)
        return commands

    def version_of(self, node: str) -> int:
        """Return the version of the last commands of a node; 0 without any."""
        last = self._sent.get(node)
        return 0 if last is None else last.version

    def has_sent(self, version: int) -> bool:
        """Return whether this controller has sent commands of a version."""
        return self._first_version < version <= self._version

    def has_received(self, report: pb.NodeReport, task: str, attempt: int) -> bool:
        """Return whether an agent had received a task when it sent a report."""
        sent = self._sent.get(report.node)
        if sent is None:
            return False
        since = sent.since.get((task, attempt))
        return since is not None and since <= report.commands_version <= sent.version

    def forget(self, node: str) -> None:
        """Drop the commands of a node that was removed."""
        self._sent.pop(node, None)


def task_command(job: LiveJob, cluster_id: str) -> pb.TaskCommand:
    """Return the command for the current attempt of a job that runs on one node."""
    is_leaving = job.stage is Stage.LEAVING
    command = pb.TaskCommand(
        job=_strip_job(job.message) if is_leaving else job.message,
        attempt=job.attempt,
        allocations=write_allocations(job.allocations),
        predictions=job.prediction_messages,
        elapsed_s=job.elapsed_s,
        done=job.saved,
        end_reason=(job.reason or "it is to end") if is_leaving else "",
        discard=is_leaving and job.cancel and job.final_stage is Stage.CANCELLED,
        exclusive=job.overflows > 0,
        submission_id=f"{cluster_id}-{job.number}",
        run_as=job.run_as,
        traceparent=job.traceparent,
    )
    if job.kinds:
        command.job.kinds[:] = job.kinds
    return command


def _strip_job(message: pb.Job) -> pb.Job:
    """Return the minimal valid message of a job that is to end: its node needs no more."""
    short = pb.Job()
    short.CopyFrom(message)
    del short.command[1:]
    short.ClearField("environment")
    short.ClearField("features")
    return short
