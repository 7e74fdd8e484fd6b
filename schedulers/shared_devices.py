"""Devices with jobs and with room for more, by who is there: found without a look at each device.

In a large cluster many devices have the same to offer, and one forecast tells of all of them.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import NamedTuple

from presage.schedulers.job import Job


class Company(NamedTuple):
    """Who is on a device, and what is left of it.

    Attributes
    ----------
    kind : str
        Of the device.
    compute_milli, memory_bytes : int
        What is left.
    jobs : tuple of Job
        Those that are there, or others that are alike.
    devices : tuple of int
        All of which this is true, rising.
    """

    kind: str
    compute_milli: int
    memory_bytes: int
    jobs: tuple[Job, ...]
    devices: tuple[int, ...]


_Sort = tuple[str, int, int, tuple[Hashable, ...]]  # jobs by their likeness


class SharedDevices:
    """Which devices have compute left beside jobs; jobs that are alike count as the same."""

    __slots__ = ("_devices_of", "_jobs", "_sort_of")

    def __init__(self) -> None:
        self._devices_of: dict[_Sort, int] = {}  # bits
        self._jobs: dict[_Sort, tuple[Job, ...]] = {}
        self._sort_of: dict[int, _Sort] = {}

    def put(
        self, device: int, kind: str, compute_milli: int, memory_bytes: int, jobs: Sequence[Job]
    ) -> None:
        """These jobs are on a device from now on, and so much of it is left."""
        self.leave(device)
        if len(jobs) > 1:
            jobs = sorted(jobs, key=lambda job: str(job.likeness))
        sort = kind, compute_milli, memory_bytes, tuple([job.likeness for job in jobs])
        self._sort_of[device] = sort
        self._devices_of[sort] = self._devices_of.get(sort, 0) | 1 << device
        self._jobs.setdefault(sort, tuple(jobs))

    def leave(self, device: int) -> None:
        """A device has no jobs, or no compute left."""
        sort = self._sort_of.pop(device, None)
        if sort is not None:
            self._devices_of[sort] &= ~(1 << device)
            if not self._devices_of[sort]:
                del self._devices_of[sort], self._jobs[sort]

    def companies(self) -> Iterator[Company]:
        """Each company that some devices have."""
        for sort, devices in self._devices_of.items():
            yield Company(*sort[:3], self._jobs[sort], _numbers(devices))


def _numbers(bits: int) -> tuple[int, ...]:
    found = []
    while bits:
        lowest = bits & -bits
        found.append(lowest.bit_length() - 1)
        bits ^= lowest
    return tuple(found)
