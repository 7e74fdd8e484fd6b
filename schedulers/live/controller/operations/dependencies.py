"""Dependencies between jobs: their checks at submission."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from graphlib import CycleError, TopologicalSorter

from presage.errors import InvalidJobError
from presage.schedulers.live.controller.replayed_state import (
    ENDED,
    LiveJob,
    ReplayedState,
    Stage,
)
from presage.schedulers.live.protocol.submitted_job import SubmittedJob

MAX_AWAITED = 1_000_000  # jobs for which all jobs of a submission wait, summed


def check_dependencies(
    state: ReplayedState, new: Collection[str], jobs: Sequence[SubmittedJob], owner: str
) -> None:
    """Raise InvalidJobError if jobs depend on unknown jobs, on failed ones, or on each other.

    Also if they depend on more than ``MAX_AWAITED`` jobs: each of 1,000 jobs may name an array.

    Parameters
    ----------
    state : ReplayedState
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

    @cache  # the jobs of an array have the same dependencies
    def find(name: str) -> tuple[int, LiveJob | None]:
        """Return the number of jobs of a name, and one of them that has ended but not finished."""
        found = state.gates.jobs_of_name(state.jobs, name, owner)
        ended = (job for job in found if job.stage in ENDED and job.stage is not Stage.FINISHED)
        return len(found), next(ended, None)

    count = 0
    for job_id, one in by_id.items():
        for name in (*one.after, *one.after_any):
            if name and name == one.array:
                raise InvalidJobError(
                    f"job {job_id!r}: runs after its own array; remove {name!r}, or give the "
                    "array another name"
                )
            count += find(name)[0]
            if count > MAX_AWAITED:
                raise InvalidJobError(
                    f"job {job_id!r}: the submitted jobs run after more than {MAX_AWAITED:,} jobs "
                    "in total; submit one job that runs after these, and the others after that job"
                )
            if name in by_id and find(name)[0]:
                raise InvalidJobError(
                    f"job {job_id!r}: {name!r}, after which it runs, is a new job and also an "
                    "array; give the new job another name"
                )
            if name not in by_id and not find(name)[0]:
                raise InvalidJobError(
                    f"job {job_id!r}: there is no job {name!r} after which it could run, or it "
                    "ended long ago; `presage cluster ps --all` lists all jobs"
                )
        for name in one.after:
            ended = find(name)[1]
            if ended is not None:
                raise InvalidJobError(
                    f"job {job_id!r}: job {ended.job_id!r}, after which it runs, is {ended.stage}; "
                    "give another one, or --after-any"
                )
    _check_cycles(by_id)


def _check_cycles(by_id: Mapping[str, SubmittedJob]) -> None:
    """Raise InvalidJobError if new jobs wait for each other, also through a known array."""
    arrays: dict[str, list[str]] = defaultdict(list)
    for job_id, one in by_id.items():
        arrays[one.array].append(job_id)

    def awaited(name: str) -> Iterable[str]:
        return [name] if name in by_id else arrays.get(name, ())

    order = TopologicalSorter({
        job_id: {other for name in (*one.after, *one.after_any) for other in awaited(name)}
        for job_id, one in by_id.items()
    })  # fmt: skip
    try:
        order.prepare()
    except CycleError as error:
        names = sorted(set(error.args[1]))[:4]
        raise InvalidJobError(
            f"jobs {', '.join(map(repr, names))}: they run after each other, so that none can "
            "start; remove one of the dependencies"
        ) from None
