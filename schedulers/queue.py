"""Pending jobs, in the order that a policy gives them."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any

from sortedcontainers import SortedList

from presage.schedulers.job import Job
from presage.schedulers.standing import Standing

Key = tuple[Any, ...]
Entry = tuple[Key, int, Job]  # its number is its own: jobs are never compared


def urgency(job: Job) -> tuple[bool, int]:
    """What every policy's key begins with: latency-sensitive jobs first, then by priority."""
    return (not job.latency_sensitive, -job.priority)


class Queue:
    """Pending jobs by a key, smallest first; those of equal keys as they were submitted.

    They are kept by gang size: what fits into a few idle devices is found without a look at the
    jobs that do not. And by shape, from the first time on that a policy goes by it.

    Parameters
    ----------
    key : callable
        Of a job and how it stands; asked when it comes into the queue, and not again while it
        waits.
    """

    def __init__(self, key: Callable[[Job, Standing], Key]) -> None:
        self._key = key
        self._by_gpus: dict[int, SortedList[Entry]] = {}
        self._entries: dict[str, Entry] = {}
        self._by_shape: dict[Hashable, SortedList[Entry]] | None = None
        self._numbers: dict[str, int] = {}  # as they were submitted

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, job_id: object) -> bool:
        return job_id in self._entries

    def __iter__(self) -> Iterator[Job]:
        return self.of_at_most(max(self._by_gpus, default=0))

    def first(self) -> Job | None:
        """The job that is served next; None of none."""
        heads = [entries[0] for entries in self._by_gpus.values() if entries]
        return min(heads)[2] if heads else None

    def of_at_most(self, gpus: int) -> Iterator[Job]:
        """Jobs that need so few devices, in order."""
        fitting = [entries for size, entries in self._by_gpus.items() if size <= gpus and entries]
        found = fitting[0] if len(fitting) == 1 else heapq.merge(*fitting)
        return (entry[2] for entry in found)

    def turns(self) -> Turns:
        """All of them in order, where those that are like one that does not fit can be left out."""
        return Turns(entries for entries in self._shapes().values() if entries)

    def one_of_each(self) -> list[Job]:
        """Of each shape the job that is served next."""
        return [entries[0][2] for entries in self._shapes().values() if entries]

    def add(self, job: Job, standing: Standing) -> None:
        """A job that waits from now on."""
        number = self._numbers.setdefault(job.job_id, len(self._numbers))
        entry = self._key(job, standing), number, job
        self._entries[job.job_id] = entry
        entries = self._by_gpus.get(job.gpus)
        if entries is None:
            entries = self._by_gpus[job.gpus] = SortedList()
        entries.add(entry)
        if self._by_shape is not None:
            self._by_shape.setdefault(job.shape, SortedList()).add(entry)

    def remove(self, job_id: str) -> None:
        """A job that waits no longer."""
        entry = self._entries.pop(job_id)
        self._by_gpus[entry[2].gpus].remove(entry)
        if self._by_shape is not None:
            alike = self._by_shape[entry[2].shape]
            alike.remove(entry)
            if not alike:
                del self._by_shape[entry[2].shape]

    def _shapes(self) -> dict[Hashable, SortedList[Entry]]:
        if self._by_shape is None:
            self._by_shape = {}
            for entry in self._entries.values():
                self._by_shape.setdefault(entry[2].shape, SortedList()).add(entry)
        return self._by_shape


class Turns:
    """Pending jobs in order; a policy says of which shapes it need not see more."""

    def __init__(self, alike: Iterable[Iterable[Entry]]) -> None:
        self._heads: list[tuple[Entry, Iterator[Entry]]] = []
        for entries in alike:
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

    def pass_over(self) -> None:
        """Leave out all that have the shape of the job that was given last."""
        self._passes_over = True
