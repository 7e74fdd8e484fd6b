"""Ownership of jobs: which of them a caller may act on, and see in full."""

from __future__ import annotations

from presage.errors import ForbiddenError
from presage.schedulers.live.controller.journal.records import Record
from presage.schedulers.live.controller.replayed_state import LiveJob
from presage.serving.authentication.callers import Caller


def owns(caller: Caller, job: LiveJob) -> bool:
    """Return whether a caller may act on a job: it submitted the job, or is an administrator.

    A name without the role ``submit`` owns nothing: anonymous callers are named by their host.
    """
    return caller.is_admin or ("submit" in caller.roles and job.owner == caller.name)


def check_owner(caller: Caller, job: LiveJob) -> None:
    """Raise ForbiddenError unless a caller may act on a job."""
    if not owns(caller, job):
        raise ForbiddenError(
            f"job {job.job_id!r} is not yours, {caller.name!r}; ask its submitter, or use a token "
            "with the role 'admin'"
        )


def sees_details(caller: Caller, job: LiveJob | None, record: Record) -> bool:
    """Return whether a caller may see the details of a journal record.

    Parameters
    ----------
    job : LiveJob or None
        The job that has the record's id now. An earlier job of that id may have been another
        user's: what was written before this job was submitted is not its owner's to see.
    """
    if caller.is_admin or not hasattr(record, "job_id"):
        return True
    return job is not None and owns(caller, job) and record.time_s >= job.submit_s
