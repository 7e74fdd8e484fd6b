"""What waiting jobs wait for besides devices: a release, other jobs, or their array's limit.

A job that waits for one of these is closed: it is not in the policy's queue.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from presage.schedulers.live.controller.replayed_state import LiveJob

ArrayKey = tuple[str, str]  # owner and name
MAX_NAMED = 3  # jobs in a reason


@dataclass(slots=True)
class JobGates:
    """Index of dependencies and arrays, derived from the jobs.

    Attributes
    ----------
    dependents : dict of str to dict of str to None
        By job, the jobs that wait for its end.
    arrays : dict of (str, str) to dict of str to None
        By array, all of its jobs whose records are kept.
    members : dict of (str, str) to dict of str to None
        By array with a limit, its jobs that have not ended, in the order of submission.
    closed : dict of (str, str) to set of str
        By array, its waiting jobs that must not start now.
    broken : dict of str to None
        Waiting jobs whose dependencies cannot be fulfilled any more.
    """

    dependents: dict[str, dict[str, None]] = field(default_factory=dict)
    arrays: dict[ArrayKey, dict[str, None]] = field(default_factory=dict)
    members: dict[ArrayKey, dict[str, None]] = field(default_factory=dict)
    closed: dict[ArrayKey, set[str]] = field(default_factory=dict)
    broken: dict[str, None] = field(default_factory=dict)

    def enter_array(self, job: LiveJob) -> None:
        """Add a job to its array, until :meth:`leave_array`."""
        if array_key(job)[1]:
            self.arrays.setdefault(array_key(job), {})[job.job_id] = None

    def leave_array(self, job: LiveJob) -> None:
        """Remove a job whose record is dropped."""
        key = array_key(job)
        if key in self.arrays:
            self.arrays[key].pop(job.job_id, None)
            if not self.arrays[key]:
                del self.arrays[key]

    def jobs_of_name(self, jobs: Mapping[str, LiveJob], name: str, owner: str) -> Sequence[LiveJob]:
        """Return the jobs that a dependency of an owner's job names.

        The name is that of a job of the owner, of an array of the owner, or of another user's job,
        in this order: other users cannot take the name of an array.
        """
        job = jobs.get(name)
        if job is not None and job.owner == owner:
            return [job]
        found = [jobs[job_id] for job_id in self.arrays.get((owner, name), ())]
        return found or ([] if job is None else [job])

    def enter(self, job: LiveJob) -> None:
        """Add a job that has not ended."""
        for name in job.awaited:
            self.dependents.setdefault(name, {})[job.job_id] = None
        if job.dependency_problem:
            self.broken[job.job_id] = None
        if job.message.array_limit:
            self.members.setdefault(array_key(job), {})[job.job_id] = None

    def leave(self, job: LiveJob) -> list[str]:
        """Remove a job that has ended; return the jobs that waited for it."""
        for name in job.awaited:
            self.dependents[name].pop(job.job_id)
            if not self.dependents[name]:
                del self.dependents[name]
        self.broken.pop(job.job_id, None)
        key = array_key(job)
        if key in self.members:
            self.members[key].pop(job.job_id, None)
            if not self.members[key]:
                del self.members[key]
                self.closed.pop(key, None)
        return list(self.dependents.pop(job.job_id, ()))

    def review_array(self, key: ArrayKey, jobs: Mapping[str, LiveJob]) -> Iterator[str]:
        """Yield the jobs of an array that are open now and were not, or the other way round."""
        members = [jobs[job_id] for job_id in self.members.get(key, ())]
        if not members:
            return
        waiting = [job for job in members if job.stage == "waiting"]
        free = members[0].message.array_limit - (len(members) - len(waiting))
        ready = [job for job in waiting if not job.held and not job.awaited]
        ready.sort(key=lambda job: -job.message.priority)
        closed = {job.job_id for job in ready[max(0, free) :]}
        before, self.closed[key] = self.closed.get(key, set()), closed
        yield from before ^ closed

    def closed_reason(self, job: LiveJob) -> str:
        """Return why a waiting job is not in the queue; "" if it is."""
        if job.held:
            return f"it is held{f' by {job.held_by}' if job.held_by else ''}"
        if job.dependency_problem:
            return job.dependency_problem
        if job.awaited:
            return f"it runs after {_names(job.awaited)}"
        if job.job_id in self.closed.get(array_key(job), ()):
            limit = job.message.array_limit
            return f"array {job.message.array} runs at most {limit} of its jobs at once"
        return ""


def array_key(job: LiveJob) -> ArrayKey:
    """Return the key of a job's array; its name is "" if the job is in none."""
    return job.owner, str(job.job_json.get("array", ""))


def _names(job_ids: Iterable[str]) -> str:
    names = list(job_ids)
    more = len(names) - MAX_NAMED
    return ", ".join(names[:MAX_NAMED]) + (f" and {more} more" if more > 0 else "")
