"""Priority queue of pending jobs, ordered by class and by the policy's key."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from itertools import count
from operator import attrgetter
from typing import Any

from sortedcontainers import SortedList

from presage.schedulers.core.job import Job
from presage.schedulers.core.job_status import JobStatus

Key = tuple[Any, ...]
Entry = tuple[Key, int, Job]  # numbers are unique, so jobs are never compared


def priority_key(job: Job) -> tuple[bool, int]:
    """Return the sort key of a job's class and priority: latency-sensitive jobs first."""
    return (not job.latency_sensitive, -job.priority)


class SubmissionNumbers(dict[str, int]):
    """Number of each job in the order in which jobs were first added to a queue."""

    def __init__(self) -> None:
        super().__init__()
        self._next = count()

    def __missing__(self, job_id: str) -> int:
        number = self[job_id] = next(self._next)
        return number


class Queue:
    """Priority queue of pending jobs: latency-sensitive jobs first, then by the policy's key.

    Jobs with equal keys keep the order of submission. An index by gang size or workload key is
    built when a policy first asks for it, and finds jobs that fit without a scan of all others.

    Parameters
    ----------
    key : callable
        Sort key of a job and its status within its class. It is called when the job enters the
        queue, and not again while it waits.
    numbers : SubmissionNumbers, optional
        Numbers of the jobs, if several queues have the same.
    """

    def __init__(
        self, key: Callable[[Job, JobStatus], Key], numbers: SubmissionNumbers | None = None
    ) -> None:
        self._key = key
        self._in_order: SortedList[Entry] = SortedList()
        self._entries: dict[str, Entry] = {}
        self._by_gpus: _Index | None = None
        self._by_workload: _Index | None = None
        self.numbers = SubmissionNumbers() if numbers is None else numbers

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, job_id: object) -> bool:
        return job_id in self._entries

    def __iter__(self) -> Iterator[Job]:
        return (entry[2] for entry in self._in_order)

    def entries(self) -> Iterator[Entry]:
        """Return the entries in order."""
        return iter(self._in_order)

    def first(self) -> Job | None:
        """Return the job at the head of the queue; None if the queue is empty."""
        return self._in_order[0][2] if self._in_order else None

    def jobs_up_to(self, gpus: int) -> Iterator[Job]:
        """Return the jobs that need at most ``gpus`` devices, in order."""
        return (entry[2] for entry in self.entries_up_to(gpus))

    def entries_up_to(self, gpus: int) -> Iterator[Entry]:
        """Return the entries of the jobs that need at most ``gpus`` devices, in order."""
        if self._by_gpus is None:
            self._by_gpus = _Index(_gpus, self._in_order)
        fitting = [entries for size, entries in self._by_gpus.groups.items() if size <= gpus]
        return heapq.merge(*fitting)

    def groups(self) -> Mapping[Hashable, Iterable[Entry]]:
        """Return the entries of each workload key, in order."""
        return self._workload_keys().groups

    def cursor(self, workload_keys: Collection[Hashable] | None = None) -> QueueCursor:
        """Return a cursor over all jobs, or over the jobs of some workload keys, in order."""
        groups = self._workload_keys().groups
        if workload_keys is None and groups and len(groups) == len(self._in_order):
            return QueueCursor([self._in_order], alike=False)
        return QueueCursor(
            groups.values() if workload_keys is None else map(groups.__getitem__, workload_keys)
        )

    def workload_keys(self, most: int) -> Collection[Hashable]:
        """Return the workload keys of single-device jobs, at most ``most``: the first in order."""
        index = self._workload_keys()
        found = [
            workload_key for workload_key, job in index.representative.items() if job.gpus == 1
        ]
        if len(found) <= most:
            return found
        return heapq.nsmallest(most, found, key=lambda workload_key: index.groups[workload_key][0])

    def latency_sensitive_keys(self) -> Collection[Hashable]:
        """Return the workload keys of latency-sensitive jobs."""
        return [
            workload_key
            for workload_key, job in self._workload_keys().representative.items()
            if job.latency_sensitive
        ]

    def representative(self, workload_key: Hashable) -> Job:
        """Return a job that has a workload key."""
        return self._workload_keys().representative[workload_key]

    def add(self, job: Job, status: JobStatus) -> None:
        """Add a job."""
        number = self.numbers[job.job_id]
        entry = (not job.latency_sensitive, *self._key(job, status)), number, job
        self._entries[job.job_id] = entry
        self._in_order.add(entry)
        for index in (self._by_gpus, self._by_workload):
            if index is not None:
                index.add(entry)

    def remove(self, job_id: str) -> None:
        """Remove a job; it keeps its place among jobs with equal keys if it is added again."""
        entry = self._entries.pop(job_id)
        self._in_order.remove(entry)
        for index in (self._by_gpus, self._by_workload):
            if index is not None:
                index.remove(entry)

    def forget(self, job_id: str) -> None:
        """Drop the submission number of a job that has ended."""
        self.numbers.pop(job_id, None)

    def _workload_keys(self) -> _Index:
        if self._by_workload is None:
            self._by_workload = _Index(_workload_key, self._in_order)
        return self._by_workload


class _Index:
    """Index of queue entries by an attribute of their jobs; each group is in queue order.

    Attributes
    ----------
    groups : dict
        Entries by the attribute's value; no group is empty.
    representative : dict
        A job of each group.
    """

    def __init__(self, attribute: Callable[[Job], Any], entries: Iterable[Entry]) -> None:
        self._attribute = attribute
        self.groups: dict[Any, SortedList[Entry]] = {}
        self.representative: dict[Any, Job] = {}
        for entry in entries:
            self.add(entry)

    def add(self, entry: Entry) -> None:
        group = self._attribute(entry[2])
        if group not in self.groups:
            self.groups[group], self.representative[group] = SortedList(), entry[2]
        self.groups[group].add(entry)

    def remove(self, entry: Entry) -> None:
        group = self._attribute(entry[2])
        self.groups[group].remove(entry)
        if not self.groups[group]:
            del self.groups[group], self.representative[group]
        elif self.representative[group] is entry[2]:
            self.representative[group] = self.groups[group][0][2]


_gpus, _workload_key = attrgetter("gpus"), attrgetter("workload_key")


class QueueCursor:
    """Iterator over pending jobs in order, which can skip jobs that are alike.

    Parameters
    ----------
    groups : iterable of iterables
        Entries in order; no group is empty.
    alike : bool
        Whether all jobs of a group have the same workload key; else no two of them have.
    """

    def __init__(self, groups: Iterable[Iterable[Entry]], *, alike: bool = True) -> None:
        self._heads: list[tuple[Entry, Iterator[Entry]]] = []
        self._alike = alike
        for entries in groups:
            rest = iter(entries)
            self._heads.append((next(rest), rest))
        heapq.heapify(self._heads)
        self._skips = False

    def __iter__(self) -> Iterator[Job]:
        heads = self._heads
        while heads:
            entry, rest = heads[0]
            self._skips = False
            yield entry[2]
            following = None if self._skips else next(rest, None)
            if following is None:
                heapq.heappop(heads)
            else:
                heapq.heapreplace(heads, (following, rest))

    def skip(self) -> None:
        """Skip the remaining jobs with the workload key of the job that was yielded last."""
        self._skips = self._alike
