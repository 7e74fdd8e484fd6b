"""Dependencies between jobs: their checks at submission, and what the end of a job means."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from presage.errors import InvalidJobError
from presage.schedulers.live.controller.operations.job_gates import jobs_of_name
from presage.schedulers.live.controller.replayed_state import ENDED, LiveJob, Stage
from presage.schedulers.live.protocol.submitted_job import SubmittedJob


def check_dependencies(
    known: Mapping[str, LiveJob], new: Collection[str], jobs: Sequence[SubmittedJob], owner: str
) -> None:
    """Raise InvalidJobError if jobs depend on unknown jobs, on failed ones, or on each other.

    Parameters
    ----------
    known : mapping of str to LiveJob
        Jobs that were submitted before; a name is that of a job, or of an array of these jobs.
    new : collection of str
        Ids of the jobs that are submitted for the first time.
    jobs : sequence of SubmittedJob
        All jobs of the submission. A job can only depend on these and on known ones, so that a
        cycle is among these.
    owner : str
        Submitter, whose arrays are meant.
    """
    by_id = {one.job.job_id: one for one in jobs if one.job.job_id in new}
    for one in by_id.values():
        job_id = one.job.job_id
        for name in (*one.after, *one.after_any):
            if name == one.array:
                raise InvalidJobError(
                    f"job {job_id!r}: runs after its own array; remove {name!r}, or give the "
                    "array another name"
                )
            if name not in by_id and not jobs_of_name(known, name, owner):
                raise InvalidJobError(
                    f"job {job_id!r}: there is no job {name!r} after which it could run; submit "
                    "that one first"
                )
        before = [job for name in one.after for job in jobs_of_name(known, name, owner)]
        for job in before:
            if job.stage in ENDED and job.stage is not Stage.FINISHED:
                raise InvalidJobError(
                    f"job {job_id!r}: job {job.job_id!r}, after which it runs, is {job.stage}; "
                    "give another one, or --after-any"
                )
    _check_cycles({job_id: (*one.after, *one.after_any) for job_id, one in by_id.items()})


def _check_cycles(before: Mapping[str, Iterable[str]]) -> None:
    """Raise InvalidJobError if jobs wait for each other; ``before`` are those that each awaits."""
    left = {job_id: {name for name in names if name in before} for job_id, names in before.items()}
    while left:
        free = [job_id for job_id, names in left.items() if not names]
        if not free:
            raise InvalidJobError(
                f"jobs {', '.join(map(repr, sorted(left)[:4]))}: they run after each other, so "
                "that none can start; remove one of the dependencies"
            )
        for job_id in free:
            del left[job_id]
        for names in left.values():
            names.difference_update(free)
