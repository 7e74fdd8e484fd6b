"""Queue of pending jobs by fair share: within a priority, users with less past use are first."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping

from presage.schedulers.core.job import Job
from presage.schedulers.core.job_status import JobStatus
from presage.schedulers.core.queue import Entry, Key, Queue, QueueCursor


class FairQueue(Queue):
    """Priority queue of pending jobs: class, priority, use of their users, then the policy's key.

    The jobs of each user are in a queue of their own, because the use of users changes while jobs
    wait. Reading merges these queues.

    Attributes
    ----------
    use : mapping of str to float
        Decayed use per weight of each user, at the time of the decision; 0 for missing users.
    """

    def __init__(self, key: Callable[[Job, JobStatus], Key]) -> None:
        super().__init__(lambda job, status: (-job.priority, *key(job, status)))
        self.use: Mapping[str, float] = {}
        self._queues: dict[str, Queue] = {}
        self._users: dict[str, str] = {}  # by job

    def __len__(self) -> int:
        return len(self._users)

    def __contains__(self, job_id: object) -> bool:
        return job_id in self._users

    def __iter__(self) -> Iterator[Job]:
        return (entry[2] for entry in self.entries())

    def entries(self) -> Iterator[Entry]:
        """Return the entries in order."""
        return self._merged((user, queue.entries()) for user, queue in self._queues.items())

    def first(self) -> Job | None:
        """Return the job at the head of the queue; None if the queue is empty."""
        return next(iter(self), None)

    def jobs_up_to(self, gpus: int) -> Iterator[Job]:
        """Return the jobs that need at most ``gpus`` devices, in order."""
        parts = ((user, queue.entries_up_to(gpus)) for user, queue in self._queues.items())
        return (entry[2] for entry in self._merged(parts))

    def cursor(self, workload_keys: Collection[Hashable] | None = None) -> QueueCursor:
        """Return a cursor over all jobs, or over the jobs of some workload keys, in order."""
        groups = self._groups()
        chosen = groups if workload_keys is None else workload_keys
        return QueueCursor([self._merged(groups[key]) for key in chosen])

    def workload_keys(self, most: int) -> Collection[Hashable]:
        """Return the workload keys of single-device jobs, at most ``most``: the first in order."""
        groups = self._groups()
        found = [key for key in groups if self.representative(key).gpus == 1]
        if len(found) <= most:
            return found
        heads = {key: next(iter(self._merged(groups[key]))) for key in found}
        return heapq.nsmallest(most, found, key=heads.__getitem__)

    def latency_sensitive_keys(self) -> Collection[Hashable]:
        """Return the workload keys of latency-sensitive jobs."""
        return [key for key in self._groups() if self.representative(key).latency_sensitive]

    def representative(self, workload_key: Hashable) -> Job:
        """Return a job that has a workload key."""
        queue = next(one for one in self._queues.values() if workload_key in one.groups())
        return queue.representative(workload_key)

    def add(self, job: Job, status: JobStatus) -> None:
        """Add a job."""
        if job.user not in self._queues:
            self._queues[job.user] = Queue(self._key, self.numbers)
        self._queues[job.user].add(job, status)
        self._users[job.job_id] = job.user

    def remove(self, job_id: str) -> None:
        """Remove a job; it keeps its place among jobs with equal keys if it is added again."""
        user = self._users.pop(job_id)
        self._queues[user].remove(job_id)
        if not len(self._queues[user]):
            del self._queues[user]

    def _groups(self) -> dict[Hashable, list[tuple[str, Iterable[Entry]]]]:
        """Return the entries of each workload key, by user."""
        found: dict[Hashable, list[tuple[str, Iterable[Entry]]]] = {}
        for user, queue in self._queues.items():
            for key, entries in queue.groups().items():
                found.setdefault(key, []).append((user, entries))
        return found

    def _merged(self, parts: Iterable[tuple[str, Iterable[Entry]]]) -> Iterator[Entry]:
        """Return the entries of several users in order, with the use of their users."""
        ranked = [_ranked(entries, self.use.get(user, 0.0)) for user, entries in parts]
        return ranked[0] if len(ranked) == 1 else heapq.merge(*ranked)


def _ranked(entries: Iterable[Entry], use: float) -> Iterator[Entry]:
    for (is_best_effort, priority, *key), number, job in entries:
        yield (is_best_effort, priority, use, *key), number, job
