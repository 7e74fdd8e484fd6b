"""Jobs that have ended in a simulation, as a past for a snapshot of it."""

from __future__ import annotations

from collections.abc import Iterable

from presage.schedulers.core.job_status import Phase
from presage.schedulers.simulator.simulation import JobResult
from presage.schedulers.what_if.snapshot import Past, PastJob


def simulated_past(results: Iterable[JobResult]) -> Past:
    """Return the jobs that have ended, with their run times."""
    return Past([_past_job(result) for result in results])


def _past_job(result: JobResult) -> PastJob:
    ran_s = result.status.attained_s / result.job.gpus
    return PastJob(result.job, result.end_s, ran_s or None, result.phase is Phase.FINISHED)
