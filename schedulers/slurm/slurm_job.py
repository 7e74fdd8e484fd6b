"""Jobs as Slurm reports them to the watcher: read by squeue, changed by scontrol.

No field that a user can write is read, so that no name or comment can pass for another field.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from presage.errors import ServiceError, one_line
from presage.schedulers.slurm.job_note import JobNote

TIMEOUT_S = 60.0
_UNLIMITED = "UNLIMITED"
_TIME = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)")
# AdminComment is last, because another plugin may have written anything into it.
_FIELDS = (
    "JobID", "RestartCnt", "State", "TimeLimit", "TimeUsed", "SubmitTime", "StartTime", "EndTime",
    "AdminComment",
)  # fmt: skip
_WIDTH, _COMMENT_WIDTH = 32, 1024
FORMAT = ",".join(f"{name}:{_WIDTH}" for name in _FIELDS[:-1]) + f",AdminComment:{_COMMENT_WIDTH}"
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
    restarts : int
        How often the job was requeued.
    limit_minutes : int or None
        Current time limit; None if it has none.
    used_s : int
        Run time so far, without the time that it was suspended.
    submitted_unix_s, started_unix_s, ended_unix_s : int
        0 if it has not happened.
    """

    job_id: int
    restarts: int
    state: str
    limit_minutes: int | None
    used_s: int
    submitted_unix_s: int
    started_unix_s: int
    ended_unix_s: int
    note: JobNote

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
        cells = [line[i * _WIDTH : (i + 1) * _WIDTH].strip() for i in range(len(_FIELDS) - 1)]
        note = JobNote.parse(line[(len(_FIELDS) - 1) * _WIDTH :].strip())
        if note is None:
            continue
        try:
            yield SlurmJob(
                job_id=int(cells[0]),
                restarts=int(cells[1]),
                state=cells[2],
                limit_minutes=_minutes(cells[3]),
                used_s=_seconds(cells[4]),
                submitted_unix_s=_unix_s(cells[5]),
                started_unix_s=_unix_s(cells[6]),
                ended_unix_s=_unix_s(cells[7]),
                note=note,
            )
        except ValueError:  # a line of another form
            continue


class Slurm:
    """Slurm's commands. They find the cluster by ``SLURM_CONF``, as always."""

    def jobs(self) -> list[SlurmJob]:
        """Return the jobs with a note, ended ones as long as slurmctld keeps them (MinJobAge).

        Raises
        ------
        ServiceError
            slurmctld does not answer.
        """
        out = _run(["squeue", "--noheader", "--array-unique", "--states=all", f"--Format={FORMAT}"])
        return list(parse_jobs(out))

    def set_limit(self, job: SlurmJob, minutes: int | None, note: JobNote) -> None:
        """Set the time limit and the note of a job at once.

        Raises
        ------
        ServiceError
            The job has ended, or slurmctld does not answer.
        """
        limit = _UNLIMITED if minutes is None else str(minutes)
        change = [f"JobId={job.job_id}", f"TimeLimit={limit}", f"AdminComment={note.text()}"]
        _run(["scontrol", "update", *change])


def cluster_name() -> str:
    """Return the ClusterName of slurm.conf.

    Raises
    ------
    ServiceError
        slurmctld does not answer.
    """
    match = re.search(r"^ClusterName\s*=\s*(\S+)", _run(["scontrol", "show", "config"]), re.M)
    return match[1] if match else ""


def _run(command: Sequence[str]) -> str:
    """Return the output of one of Slurm's commands."""
    environment = {**os.environ, "SLURM_TIME_FORMAT": "%s", "LC_ALL": "C"}
    try:
        done = subprocess.run(
            command,
            check=False,
            capture_output=True,
            text=True,
            errors="backslashreplace",
            timeout=TIMEOUT_S,
            env=environment,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ServiceError(
            f"{command[0]} cannot be run ({one_line(error)}); check PATH and SLURM_CONF"
        ) from error
    if done.returncode:
        raise ServiceError(f"{command[0]} failed: {one_line(done.stderr)[:300]}")
    return done.stdout


def _minutes(text: str) -> int | None:
    if text == _UNLIMITED:
        return None
    return _seconds(text) // 60


def _seconds(text: str) -> int:
    match = _TIME.fullmatch(text)
    if match is None:
        raise ValueError(text)
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def _unix_s(text: str) -> int:
    return int(text) if text.isdigit() else 0
