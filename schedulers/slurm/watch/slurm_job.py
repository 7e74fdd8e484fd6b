"""Jobs as Slurm reports them to the watcher: read by squeue, changed by scontrol.

No field that a user can write is read, so that no name or comment can pass for another field.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from presage.schedulers.slurm.job_note import JobNote
from presage.schedulers.slurm.slurm_commands import (
    UNLIMITED,
    cells_of,
    format_option,
    minutes_of,
    run_slurm,
    seconds_of,
    slurm_settings,
    unix_s_of,
)

_TASKS = re.compile(r"[0-9,-]+")
# The AdminComment is last, because another plugin may have written anything into it.
WIDTHS = {
    "JobID": 16, "ArrayJobID": 16, "ArrayTaskID": 300, "RestartCnt": 8, "State": 20, "Reason": 40,
    "exit_code": 12, "TimeLimit": 20, "TimeUsed": 20, "SubmitTime": 20, "StartTime": 20,
    "EndTime": 20,
}  # fmt: skip
FORMAT = format_option(WIDTHS, "admin_comment:1024")
PENDING, COMPLETING = "PENDING", "COMPLETING"
ACTIVE = ("RUNNING", "SUSPENDED", "CONFIGURING", "STOPPED")
ENDED = (
    "COMPLETED", "FAILED", "TIMEOUT", "OUT_OF_MEMORY", "CANCELLED", "NODE_FAIL", "PREEMPTED",
    "BOOT_FAIL", "DEADLINE",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmJob:
    """One job with a note of the bridge; a task of a job array is a job of its own.

    Attributes
    ----------
    job_id : int
        Slurm's unique id, not that of the array.
    name : str
        Id for scontrol: that of one job or task, or of all pending tasks of an array.
    restarts : int
        How often the job was requeued.
    reason : str
        Slurm's reason for the state.
    exit_code : str
        Exit status and signal, such as "0:15".
    limit_minutes : int or None
        Current time limit; None if it has none.
    used_s : int
        Run time so far, without the time that it was suspended.
    submitted_unix_s, started_unix_s, ended_unix_s : int
        0 if it has not happened.
    """

    job_id: int
    name: str
    restarts: int
    state: str
    reason: str
    exit_code: str
    limit_minutes: int | None
    used_s: int
    submitted_unix_s: int
    started_unix_s: int
    ended_unix_s: int
    note: JobNote

    @property
    def run(self) -> tuple[int, int, int]:
        """Identity of one run of the job: requeued jobs run several times."""
        return self.job_id, self.submitted_unix_s, self.restarts

    @property
    def is_managed(self) -> bool:
        """Whether its limit is still the one that Presage has set, below the user's own."""
        return (
            self.note.set_minutes is not None
            and self.note.set_minutes == self.limit_minutes
            and self.limit_minutes != self.note.own_minutes
        )


def parse_jobs(text: str) -> Iterator[SlurmJob]:
    """Yield the jobs that have a note, from the output of squeue with ``FORMAT``."""
    for line in text.splitlines():
        cells, comment = cells_of(line, WIDTHS)
        note = JobNote.parse(comment)
        if note is None:
            continue
        try:
            yield _job(cells, note)
        except ValueError:  # a line of another form
            continue


def _job(cells: Mapping[str, str], note: JobNote) -> SlurmJob:
    return SlurmJob(
        job_id=int(cells["JobID"]),
        name=_name(cells["JobID"], cells["ArrayJobID"], cells["ArrayTaskID"]),
        restarts=int(cells["RestartCnt"]),
        state=cells["State"],
        reason=cells["Reason"],
        exit_code=cells["exit_code"],
        limit_minutes=minutes_of(cells["TimeLimit"]),
        used_s=seconds_of(cells["TimeUsed"]),
        submitted_unix_s=unix_s_of(cells["SubmitTime"]),
        started_unix_s=unix_s_of(cells["StartTime"]),
        ended_unix_s=unix_s_of(cells["EndTime"]),
        note=note,
    )


def _name(job_id: str, array_id: str, tasks: str) -> str:
    """Return an id for scontrol, to which the id of an array would mean all of its tasks."""
    tasks = tasks.partition("%")[0]
    if tasks.isdigit():
        return f"{array_id}_{tasks}"
    return f"{array_id}_[{tasks}]" if _TASKS.fullmatch(tasks) else job_id


class Slurm:
    """Jobs in a Slurm cluster."""

    def jobs(self) -> list[SlurmJob]:
        """Return the jobs with a note, ended ones as long as slurmctld keeps them (MinJobAge).

        Raises
        ------
        ServiceError
            slurmctld does not answer.
        """
        out = run_slurm(["squeue", "--noheader", "--states=all", FORMAT])
        return list(parse_jobs(out))

    def set_limit(self, job: SlurmJob, minutes: int | None, note: JobNote) -> None:
        """Set the time limit and the note of a job at once.

        Raises
        ------
        ServiceError
            The job has ended, or slurmctld does not answer.
        """
        limit = UNLIMITED if minutes is None else str(minutes)
        change = [f"JobId={job.name}", f"TimeLimit={limit}", f"AdminComment={note.text()}"]
        run_slurm(["scontrol", "update", *change])


def cluster_name() -> str:
    """Return the ClusterName of slurm.conf.

    Raises
    ------
    ServiceError
        slurmctld does not answer.
    """
    return slurm_settings().get("ClusterName", "")
