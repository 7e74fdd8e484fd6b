"""Ended jobs that the epilog recorded: for those that end while the watcher is away for long.

slurmctld forgets an ended job after ``MinJobAge``, five minutes by default.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from presage.schedulers.slurm.watch.slurm_job import COMPLETING, SlurmJob, parse_jobs
from presage.system.files.regular_file import read_small

FOLDER = "ended"  # in the state folder
_MAX_BYTES = 64 * 1024
_MAX_READ = 10_000  # in one pass
_PARTIAL_S = 3600.0
# The epilog runs while the job is COMPLETING: its reason says how it ended.
_STATES = {
    "TimeLimit": "TIMEOUT",
    "NonZeroExitCode": "FAILED",
    "RaisedSignal": "FAILED",
    "OutOfMemory": "OUT_OF_MEMORY",
}


class EndedJobs:
    """Folder of records of the epilog.

    Parameters
    ----------
    state : Path
        State folder of bridge and watcher.
    """

    def __init__(self, state: Path) -> None:
        self._folder = state / FOLDER
        self._folder.mkdir(mode=0o700, exist_ok=True)

    def take(self, jobs: Sequence[SlurmJob]) -> Iterator[SlurmJob]:
        """Yield recorded jobs that slurmctld has forgotten; remove the records that are done.

        Parameters
        ----------
        jobs : sequence of SlurmJob
            Jobs that slurmctld knows. While it knows a job, that is the better source.
        """
        known = {job.run: job for job in jobs}
        for path in sorted(self._folder.glob("[!.]*"))[:_MAX_READ]:
            for job in _read(path):
                found = known.get(job.run)
                if found is not None and found.state == COMPLETING:
                    break
                if found is None:
                    yield ended(job)
            else:
                with suppress(OSError):
                    path.unlink()

    def prune(self) -> None:
        """Remove parts of records whose epilog was killed."""
        oldest_s = time.time() - _PARTIAL_S
        for path in self._folder.glob(".*"):
            with suppress(OSError):
                if path.lstat().st_mtime < oldest_s:
                    path.unlink()


def ended(job: SlurmJob) -> SlurmJob:
    """Return a completing job in the state that it will have; "" if that is not certain."""
    if job.state != COMPLETING:
        return job
    state = _STATES.get(job.reason, "")
    if job.reason == "None" and job.exit_code in ("0", "0:0"):
        state = "COMPLETED"
    return replace(job, state=state)


def _read(path: Path) -> list[SlurmJob]:
    try:
        return list(parse_jobs(read_small(path, _MAX_BYTES).decode(errors="replace")))
    except OSError:
        return []
