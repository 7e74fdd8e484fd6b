"""Pending jobs, in the order that a policy gives them."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from itertools import count
from operator import attrgetter
from typing import Any

from sortedcontainers import SortedList

from presage.schedulers.core.job import Job
from presage.schedulers.core.job_status import JobStatus

Key = tuple[Any, ...]
Entry = tuple[Key, int, Job]  # its number is its own: jobs are never compared


def priority_key(job: Job) -> tuple[bool, int]:
    """What every policy's key begins with: latency-sensitive jobs first, then by priority."""
    return (not job.latency_sensitive, -job.priority)


class Queue:
    """Pending jobs by a key, smallest first; those of equal keys as they were submitted.

    From the first time on that a policy goes by gang size or by shape, they are kept so as well:
    what fits is found without a look at all that do not.

    Parameters
    ----------
    key : callable
        Of a job and how it stands; asked when it comes into the queue, and not again while it
        waits.
    """

    def __init__(self, key: Callable[[Job, JobStatus], Key]) -> None:
        self._key = key
        self._in_order: SortedList[Entry] = SortedList()
        self._entries: dict[str, Entry] = {}
        self._by_gpus: _Index | None = None
        self._by_shape: _Index | None = None
        self._numbers: dict[str, int] = {}  # as they were submitted
        self._next_number = count()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, job_id: object) -> bool:
        return job_id in self._entries

    def __iter__(self) -> Iterator[Job]:
        return (entry[2] for entry in self._in_order)

    def first(self) -> Job | None:
        """The job that is served next; None of none."""
        return self._in_order[0][2] if self._in_order else None

    def of_at_most(self, gpus: int) -> Iterator[Job]:
        """Jobs that need so few devices, in order."""
        if self._by_gpus is None:
            self._by_gpus = _Index(_gpus, self._in_order)
        fitting = [entries for size, entries in self._by_gpus.groups.items() if size <= gpus]
        return (entry[2] for entry in heapq.merge(*fitting))

    def turns(self, workload_keys: Collection[Hashable] | None = None) -> QueueCursor:
        """All of them in order, or those of some shapes.

        Those that are like one that does not fit can be left out.
        """
        groups = self._workload_keys().groups
        if workload_keys is None and groups and len(groups) == len(self._in_order):
            return QueueCursor([self._in_order], alike=False)
        return QueueCursor(
            groups.values() if workload_keys is None else map(groups.__getitem__, workload_keys)
        )

    def workload_keys(self, most: int) -> Collection[Hashable]:
        """Of jobs that need a single device; of more than ``most`` those that are served first."""
        index = self._workload_keys()
        found = [workload_key for workload_key, job in index.one_of.items() if job.gpus == 1]
        if len(found) <= most:
            return found
        return heapq.nsmallest(most, found, key=lambda workload_key: index.groups[workload_key][0])

    def latency_sensitive_keys(self) -> Collection[Hashable]:
        """Of latency-sensitive jobs."""
        return [
            workload_key
            for workload_key, job in self._workload_keys().one_of.items()
            if job.latency_sensitive
        ]

    def one_of(self, workload_key: Hashable) -> Job:
        """A job of a shape."""
        return self._workload_keys().one_of[workload_key]

    def add(self, job: Job, status: JobStatus) -> None:
        """A job that waits from now on."""
        if job.job_id not in self._numbers:
            self._numbers[job.job_id] = next(self._next_number)
        number = self._numbers[job.job_id]
        entry = self._key(job, status), number, job
        self._entries[job.job_id] = entry
        self._in_order.add(entry)
        for index in (self._by_gpus, self._by_shape):
            if index is not None:
                index.add(entry)

    def remove(self, job_id: str) -> None:
        """A job that waits no longer."""
        entry = self._entries.pop(job_id)
        self._in_order.remove(entry)
        for index in (self._by_gpus, self._by_shape):
            if index is not None:
                index.remove(entry)

    def forget(self, job_id: str) -> None:
        """A job that never comes back."""
        self._numbers.pop(job_id, None)

    def _workload_keys(self) -> _Index:
        if self._by_shape is None:
            self._by_shape = _Index(_workload_key, self._in_order)
        return self._by_shape


class _Index:
    """Entries that have something in common, each group in order; no group is empty."""

    def __init__(self, of: Callable[[Job], Any], entries: Iterable[Entry]) -> None:
        self._of = of
        self.groups: dict[Any, SortedList[Entry]] = {}
        self.one_of: dict[Any, Job] = {}
        for entry in entries:
            self.add(entry)

    def add(self, entry: Entry) -> None:
        group = self._of(entry[2])
        if group not in self.groups:
            self.groups[group], self.one_of[group] = SortedList(), entry[2]
        self.groups[group].add(entry)

    def remove(self, entry: Entry) -> None:
        group = self._of(entry[2])
        self.groups[group].remove(entry)
        if not self.groups[group]:
            del self.groups[group], self.one_of[group]
        elif self.one_of[group] is entry[2]:
            self.one_of[group] = self.groups[group][0][2]


_gpus, _workload_key = attrgetter("gpus"), attrgetter("workload_key")


class QueueCursor:
    """Pending jobs in order; a policy says of which shapes it need not see more.

    Parameters
    ----------
    groups : iterable of iterables
        None of them empty.
    alike : bool
        Whether the jobs of a group are of one shape; else no two of them are.
    """

    def __init__(self, groups: Iterable[Iterable[Entry]], *, alike: bool = True) -> None:
        self._heads: list[tuple[Entry, Iterator[Entry]]] = []
        self._alike = alike
        for entries in groups:
            rest = iter(entries)
            self._heads.append((next(rest), rest))
        heapq.heapify(self._heads)
        self._passes_over = False

    def __iter__(self) -> Iterator[Job]:
        heads = self._heads
        while heads:
            entry, rest = heads[0]
            self._passes_over = False
            yield entry[2]
            following = None if self._passes_over else next(rest, None)
            if following is None:
                heapq.heappop(heads)
            else:
                heapq.heapreplace(heads, (following, rest))

    def skip(self) -> None:
        """Leave out all that have the shape of the job that was given last."""
        self._passes_over = self._alike
