"""Time limits of jobs. As in Slurm, a limit counts from each start of a job."""

from __future__ import annotations

from collections.abc import Iterator

from presage.schedulers.live.controller.journal.records import Record, Stopping
from presage.schedulers.live.controller.replayed_state import LiveJob, ReplayedState, Stage
from presage.system.text.units import quantity


def overdue_records(state: ReplayedState, now_s: float) -> Iterator[Record]:
    """Yield the records by which jobs end that have run longer than their limit."""
    for job in state.limited.values():
        if now_s >= limit_end_s(job):
            limit = quantity(job.submitted.time_limit_s, "seconds")
            why = f"it ran longer than its time limit of {limit}"
            yield Stopping(job.job_id, job.attempt, why, True, now_s, Stage.TIMED_OUT)


def limit_end_s(job: LiveJob) -> float:
    """Return when a running job reaches its time limit; infinite without one."""
    limit_s = job.submitted.time_limit_s
    return (job.running_since_s or job.since_s) + limit_s if limit_s else float("inf")
