"""Membership of jobs in the decisions of an arbiter: when a job leaves, and when it comes back."""

from __future__ import annotations

from collections.abc import Iterable

from presage.collectives.arbiter import agreement
from presage.collectives.arbiter.agreement import Controller
from presage.collectives.arbiter.arbiter_options import ArbiterOptions
from presage.collectives.arbiter.jobs import Job

_MOST_PENDING = 16  # views that a job has not adopted


def members(jobs: Iterable[Job], now_s: float) -> list[Job]:
    """Return the jobs that the next decisions are for."""
    return [job for job in jobs if job.is_member or _can_join(job, now_s)]


def _can_join(job: Job, now_s: float) -> bool:
    return (
        job.is_complete
        and job.size > 1
        and bool(job.switches)
        and job.connected == job.size
        and job.started > job.idle_at
        and now_s >= job.back_s
    )


def find_leaving(
    jobs: Iterable[Job], controller: Controller, options: ArbiterOptions, now_s: float
) -> list[str]:
    """Take jobs out of the decisions that are lost, idle, or adopt no view.

    Returns
    -------
    list of str
        Notices for an operator.
    """
    pending = agreement.pending_views(controller)
    notices = []
    for job in jobs:
        if not job.is_member:
            continue
        is_late = not job.is_complete and now_s - job.since_s >= options.restart_s
        is_idle = now_s - job.progress_s >= options.idle_s
        if len(pending.get(job.name, ())) > _MOST_PENDING:
            notices.append(f"job {job.name!r} adopts no views; it runs by ring for a while")
            job.back_s = now_s + options.idle_s
            is_idle = True
        if is_late or is_idle or job.is_lost(now_s, options.lease_s):
            take_out(job, controller, job.started if is_idle else -1)
    return notices


def take_out(job: Job, controller: Controller, idle_at: int = -1) -> None:
    """Take a job out of the decisions, and keep the views that its ranks may have.

    It comes back once it has started a number above ``idle_at``.
    """
    job.is_member, job.idle_at = False, idle_at
    view = agreement.views_in_force(controller).get(job.name)
    views = agreement.pending_views(controller).get(job.name, ())
    job.views |= {one.epoch: one for one in (*views, *((view,) if view else ())) if one.epoch}
