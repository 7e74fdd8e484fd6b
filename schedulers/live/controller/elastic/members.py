"""Workers of elastic jobs: their tasks on nodes, and the records that follow from their ends."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from presage.errors import InvalidJobError, UnknownJobError
from presage.schedulers.core.allocation import FULL_DEVICE_MILLI
from presage.schedulers.core.job import Job
from presage.schedulers.live.controller.elastic.leader_report import MAX_WORKERS
from presage.schedulers.live.controller.journal.records import (
    Ended,
    MemberEnded,
    Record,
    Requeued,
    Resized,
    Stopping,
)
from presage.schedulers.live.controller.replayed_state import LiveJob, Member, Stage
from presage.schedulers.live.protocol.submitted_job import MAX_NAME_LENGTH
from presage.schedulers.v1 import cluster_pb2 as pb
from presage.system.text.units import counted

_TASK_ID = re.compile(r"(.+)/m([1-9][0-9]*)", re.DOTALL)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")  # of a leader's job
MAX_ELASTIC_ID = MAX_NAME_LENGTH - 8  # its workers' tasks have longer ones
NO_LONGER_REPORTED = "its node does not report it any more"


class MemberEnd(NamedTuple):
    """End of a worker.

    Attributes
    ----------
    finished, failed, is_late : bool
        Whether it completed the job, or failed, and that after the last step.
    overflowed : bool
        Whether it failed because it ran out of memory on a part of a device.
    """

    member: Member
    reason: str
    finished: bool = False
    failed: bool = False
    is_late: bool = False
    overflowed: bool = False


def check_job(job: Job) -> None:
    """Raise InvalidJobError if a job has the id of a worker, or is elastic and too large."""
    if _TASK_ID.fullmatch(job.job_id):
        raise InvalidJobError(
            f"job {job.job_id!r}: ids that end with /m and a number are those of workers of "
            "elastic jobs; choose another"
        )
    if job.is_elastic and job.most_gpus > MAX_WORKERS:
        raise InvalidJobError(
            f"job {job.job_id!r}: max_gpus={job.most_gpus}, must be <= {MAX_WORKERS}, the largest "
            "number of workers of an elastic job"
        )
    if job.is_elastic and len(job.job_id) > MAX_ELASTIC_ID:
        raise InvalidJobError(
            f"job {job.job_id!r}: the id of an elastic job has at most {MAX_ELASTIC_ID} characters"
        )


def leader_job(job: LiveJob) -> str:
    """Return the name of a job for its leader: its id if that can be a file name."""
    return job.job_id if _NAME.fullmatch(job.job_id) else f"job-{job.number}"


def task_id(job: LiveJob, member: Member) -> str:
    """Return the id of a worker's task."""
    return f"{job.job_id}/{member.name}"


def job_of_task(task: str) -> tuple[str, int]:
    """Return the job id and the number of the worker of a task; 0 if it is no worker's."""
    found = _TASK_ID.fullmatch(task)
    return (found[1], int(found[2])) if found else (task, 0)


def task_of_log(job: LiveJob, name: str) -> tuple[str, str]:
    """Return the task and the node of a log: of a job's only task, or of one of its workers.

    Parameters
    ----------
    name : str
        Id of the job, whose first worker is meant, or of a worker's task.

    Raises
    ------
    UnknownJobError
        The current attempt has no such worker.
    """
    if not job.member_nodes:
        return job.job_id, job.node
    number = job_of_task(name)[1] if name != job.job_id else 0
    worker = f"m{number}" if number else job.first_member
    if worker not in job.member_nodes:
        known = ", ".join(job.member_nodes)
        raise UnknownJobError(
            f"job {job.job_id!r} has no worker {worker!r}; attempt {job.starts} has {known}"
        )
    return f"{job.job_id}/{worker}", job.member_nodes[worker]


def members_at(job: LiveJob, node: str) -> list[Member]:
    """Return the workers of a job at a node, those that are to leave last."""
    return [member for member in (*job.members, *job.leaving) if member.node == node]


def ended_members(
    job: LiveJob, node: str, tasks: Mapping[str, pb.Task], received: frozenset[int]
) -> Iterator[MemberEnd]:
    """Yield the workers of a job at a node that have ended, by the report of the node.

    Parameters
    ----------
    tasks : mapping of str to Task
        Tasks of the current attempt, by id.
    received : frozenset of int
        Numbers of the workers that the node had received when it sent the report.
    """
    for member in members_at(job, node):
        task = tasks.get(task_id(job, member))
        if task is None:
            if member.number in received:
                yield MemberEnd(member, NO_LONGER_REPORTED)
        elif task.phase == pb.TASK_ENDED:
            yield _end(job, member, task)


def _end(job: LiveJob, member: Member, task: pb.Task) -> MemberEnd:
    result, is_leaving = task.exit, member in job.leaving or job.stage is Stage.LEAVING
    if result.finished and not (is_leaving and task.done < 1):
        return MemberEnd(member, "it completed the job", finished=True)
    if member in job.leaving:
        return MemberEnd(member, "it left")
    if is_leaving or result.requested:
        return MemberEnd(member, job.reason or task.reason or "it left")
    reason = "it ran out of memory" if result.out_of_memory else result.description
    has_failed = not result.lost
    is_late = has_failed and task.done >= 1  # for example it could not write the final model
    is_part = member.compute_milli < FULL_DEVICE_MILLI
    overflowed = has_failed and result.out_of_memory and is_part
    return MemberEnd(member, reason, failed=has_failed, is_late=is_late, overflowed=overflowed)


def records_of_ends(
    job: LiveJob,
    ends: Sequence[MemberEnd],
    saved: float,
    ran_s: float,
    now_s: float,
    now_unix_s: float,
) -> list[Record]:
    """Return the records that follow from the end of some workers of a job.

    Without a worker the job has ended or waits again. With fewer than its minimum, the others save
    a checkpoint and leave.

    Parameters
    ----------
    saved : float
        Fraction of the job in its last checkpoint.
    ran_s : float
        Time for which this attempt ran, in seconds.
    """
    if not ends:
        return []
    over = {end.member.number for end in ends}
    left = [member for member in job.members if member.number not in over]
    leaving = [member for member in job.leaving if member.number not in over]
    if not left and not leaving:
        return [_last_record(job, ends, saved, ran_s, (now_s, now_unix_s))]
    records: list[Record] = [
        MemberEnded(
            job.job_id, job.attempt, end.member.number, _name_end(end),
            end.finished, end.failed, end.is_late, now_s, end.overflowed,
        )
        for end in ends
    ]  # fmt: skip
    fewest = job.submitted.job.fewest_gpus
    is_complete = job.is_complete or any(end.finished for end in ends)
    if job.stage is not Stage.LEAVING and not is_complete and len(left) < fewest:
        reason = (
            f"{_last_failure(ends)}; {counted(len(left), 'worker')} left, and it needs {fewest}"
        )
        records.append(Stopping(job.job_id, job.attempt, reason, False, now_s))
    return records


def _last_record(
    job: LiveJob, ends: Sequence[MemberEnd], saved: float, ran_s: float, times: tuple[float, float]
) -> Record:
    now_s, now_unix_s = times
    late = next((_name_end(end) for end in ends if end.is_late), job.late_failure)

    def ended(stage: Stage, reason: str) -> Ended:
        return Ended(job.job_id, job.attempt, stage, reason, ran_s, now_s, now_unix_s)

    if (job.is_complete or any(end.finished for end in ends)) and not late:
        return ended(Stage.FINISHED, "")
    if job.cancel:
        return ended(job.final_stage, job.reason)
    is_ending = job.stage is Stage.LEAVING
    has_failed = bool(late) or (not is_ending and any(end.failed for end in ends))
    reason = late or (job.reason if is_ending else _last_failure(ends))
    overflowed = any(end.overflowed for end in ends) and not late
    has_failed &= not overflowed  # next time it gets devices of its own
    if has_failed and job.failures >= job.submitted.retries:
        return ended(Stage.FAILED, reason)
    return Requeued(job.job_id, job.attempt, reason, saved, ran_s, overflowed, has_failed, now_s)


def _last_failure(ends: Sequence[MemberEnd]) -> str:
    return _name_end(next((end for end in reversed(ends) if end.failed), ends[-1]))


def _name_end(end: MemberEnd) -> str:
    return f"worker {end.member.name}: {end.reason}"


def without_node(job: LiveJob, node: str, reason: str, now_s: float) -> Record:
    """Return the record by which a job leaves a node, as :func:`without_members` does."""
    gone = [member for member in job.members if member.node == node]
    return without_members(job, gone, reason, now_s)


def without_members(job: LiveJob, gone: Collection[Member], reason: str, now_s: float) -> Record:
    """Return the record by which a job continues without some workers, or ends if too few stay."""
    left = [member for member in job.members if member not in gone]
    if len(left) < job.submitted.job.fewest_gpus:
        return Stopping(job.job_id, job.attempt, reason, False, now_s)
    return Resized(job.job_id, job.attempt, [list(one) for one in left], reason, now_s)


def resized_members(job: LiveJob, devices: Sequence[tuple[str, list[int]]]) -> list[Member]:
    """Return the workers of a job on other devices or shares: it keeps those that are there.

    Parameters
    ----------
    devices : sequence of (str, [device, compute_milli, memory_bytes])
        Node and allocation of each worker.
    """
    here = {(member.node, member.device): member for member in job.members}
    members, number = list[Member](), job.next_member
    for node, allocation in devices:
        known = here.get((node, allocation[0]))
        if known is None:
            members.append(Member(number, node, *allocation))
            number += 1
        else:  # its share may be another
            members.append(Member(known.number, node, *allocation))
    return sorted(members)
