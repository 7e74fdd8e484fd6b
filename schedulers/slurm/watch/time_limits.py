"""Time limits of running jobs: extended before they are reached, up to the user's own. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace

from presage.schedulers.slurm.job_note import JobNote
from presage.schedulers.slurm.watch.slurm_job import ACTIVE, PENDING, SlurmJob

GROWTH = 1.25  # of the run time so far: a job that outlives its forecast needs few extensions
Change = tuple[SlurmJob, int | None, JobNote]


def extensions(jobs: Iterable[SlurmJob], lead_minutes: int) -> Iterator[Change]:
    """Yield the running jobs that are within ``lead_minutes`` of their limit, and their new limit.

    The new limit leaves at least twice the lead, unless the user's own limit is closer. Slurm ends
    the job at the user's own limit.
    """
    for job in jobs:
        if job.state not in ACTIVE or not job.is_managed or job.limit_minutes is None:
            continue
        if job.limit_minutes * 60 - job.used_s >= lead_minutes * 60:
            continue
        used = job.used_s / 60
        minutes = math.ceil(max(used * GROWTH, used + 2 * lead_minutes))
        if job.note.own_minutes is not None:
            minutes = min(minutes, job.note.own_minutes)
        if minutes > job.limit_minutes:
            yield job, minutes, replace(job.note, set_minutes=minutes)


def restorations(jobs: Iterable[SlurmJob]) -> Iterator[Change]:
    """Yield the pending and running jobs with a limit of Presage, and their user's own limit."""
    for job in jobs:
        if job.is_managed and (job.state == PENDING or job.state in ACTIVE):
            yield job, job.note.own_minutes, replace(job.note, set_minutes=None)
