"""Jobs of Slurm for tests, and a cluster of the watcher's without one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from presage.errors import ServiceError
from presage.schedulers.slurm.job_note import JobNote
from presage.schedulers.slurm.watch.slurm_job import WIDTHS, SlurmJob

NOTE = JobNote(
    own_minutes=600,
    set_minutes=30,
    predicted_s=1500,
    release_id="release",
    device="example",
    features="d" * 64,
)


def slurm_job(job_id: int = 7, *, note: JobNote = NOTE, **changes: Any) -> SlurmJob:
    values: dict[str, Any] = {
        "job_id": job_id,
        "name": str(job_id),
        "restarts": 0,
        "state": "RUNNING",
        "reason": "None",
        "exit_code": "0:0",
        "limit_minutes": note.set_minutes or note.own_minutes,
        "used_s": 60,
        "submitted_unix_s": 1_000_000,
        "started_unix_s": 1_000_100,
        "ended_unix_s": 0,
        "note": note,
    }
    return SlurmJob(**(values | changes))


def squeue_line(comment: str = NOTE.text(), **changes: str) -> str:
    """Return a line of squeue in the watcher's format."""
    cells = {
        "JobID": "7",
        "ArrayJobID": "7",
        "ArrayTaskID": "N/A",
        "RestartCnt": "0",
        "State": "RUNNING",
        "Reason": "None",
        "exit_code": "0:0",
        "TimeLimit": "30:00",
        "TimeUsed": "1:00",
        "SubmitTime": "1000000",
        "StartTime": "1000100",
        "EndTime": "1001900",
    } | changes
    return "".join(f"{cells[name]:{width}}" for name, width in WIDTHS.items()) + comment


class FakeSlurm:
    """Queue in memory."""

    def __init__(self, *jobs: SlurmJob) -> None:
        self.by_id = {job.job_id: job for job in jobs}
        self.refuses: set[int] = set()

    def jobs(self) -> list[SlurmJob]:
        return list(self.by_id.values())

    def set_limit(self, job: SlurmJob, minutes: int | None, note: JobNote) -> None:
        if job.job_id in self.refuses:
            raise ServiceError("scontrol failed: Job/step already completing or completed")
        self.by_id[job.job_id] = replace(self.by_id[job.job_id], limit_minutes=minutes, note=note)

    def change(self, job_id: int, **changes) -> None:
        self.by_id[job_id] = replace(self.by_id[job_id], **changes)
