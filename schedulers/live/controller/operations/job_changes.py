"""Records by which users change jobs: hold, release, requeue and priority."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from presage.errors import ForbiddenError, InvalidJobError, UnknownJobError
from presage.schedulers.live.controller.journal.records import (
    Held,
    PriorityChanged,
    Record,
    Stopping,
)
from presage.schedulers.live.controller.ownership import check_owner
from presage.schedulers.live.controller.replayed_state import ENDED, LiveJob, ReplayedState, Stage
from presage.serving.authentication.callers import Caller


def hold_jobs(
    state: ReplayedState, job_ids: Iterable[str], now_s: float, caller: Caller, *, release: bool
) -> list[Record]:
    """Return the records that hold jobs, or release them.

    A running job goes on, and does not start again after it has been requeued. Only administrators
    release what an administrator holds for another user.

    Raises
    ------
    UnknownJobError, InvalidJobError, ForbiddenError
        One of the jobs does not exist, has ended, or is another user's; none is changed.
    """
    done = "released" if release else "held"

    def change(job: LiveJob) -> Record | None:
        if release and job.held_by_admin and not caller.is_admin:
            raise ForbiddenError(
                f"nothing was {done}: job {job.job_id!r} is held by the administrator "
                f"{job.held_by!r}; ask for its release"
            )
        by_admin = not release and caller.is_admin and caller.name != job.owner
        # An administrator may hold what its owner holds: then the owner cannot release it.
        if job.held != release and (job.held_by_admin or not by_admin):
            return None
        return Held(job.job_id, not release, caller.name, by_admin, now_s)

    return _changed(state, job_ids, caller, change, done)


def requeue_jobs(
    state: ReplayedState, job_ids: Iterable[str], now_s: float, caller: Caller
) -> list[Record]:
    """Return the records by which running jobs save their state and return to the queue.

    Raises
    ------
    UnknownJobError, InvalidJobError, ForbiddenError
        One of the jobs does not exist, does not run, or is another user's; none is requeued.
    """

    def change(job: LiveJob) -> Record | None:
        if job.stage is Stage.WAITING or job.cancel:
            state_text = "is in the queue already" if not job.cancel else "is being ended"
            raise InvalidJobError(f"nothing was requeued: job {job.job_id!r} {state_text}")
        if job.stage is Stage.LEAVING:
            return None
        return Stopping(job.job_id, job.attempt, "it was requeued", False, now_s)

    return _changed(state, job_ids, caller, change, "requeued")


def change_priority(
    state: ReplayedState, job_ids: Iterable[str], priority: int, now_s: float, caller: Caller
) -> list[Record]:
    """Return the records that set the priority of jobs.

    Raises
    ------
    UnknownJobError, InvalidJobError, ForbiddenError
        One of the jobs does not exist, has ended, or is another user's; none is changed.
    """

    def change(job: LiveJob) -> Record | None:
        is_same = job.submitted.job.priority == priority
        return None if is_same else PriorityChanged(job.job_id, priority, now_s)

    return _changed(state, job_ids, caller, change, "changed")


def _changed(
    state: ReplayedState,
    job_ids: Iterable[str],
    caller: Caller,
    change: Callable[[LiveJob], Record | None],
    done: str,
) -> list[Record]:
    """Return the records of all jobs, each after checks of its owner and that it has not ended."""
    records = []
    for job_id in dict.fromkeys(job_ids):
        job = state.jobs.get(job_id)
        if job is None:
            raise UnknownJobError(
                f"nothing was {done}: there is no job {job_id!r}, or it ended long ago; `presage "
                "cluster ps --all` lists all jobs"
            )
        check_owner(caller, job)
        if job.stage in ENDED:
            raise InvalidJobError(
                f"nothing was {done}: job {job_id!r} is {job.stage}; submit it again with another "
                "name"
            )
        record = change(job)
        records += [] if record is None else [record]
    return records
