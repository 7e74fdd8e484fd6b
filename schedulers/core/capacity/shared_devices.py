"""Devices with jobs and with room for more, by who is there: found without a look at each device.

In a large cluster many devices have the same to offer, and one forecast tells of all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from presage.schedulers.core.job import Job

MOST_KNOWN = 10_000  # companies that are remembered though no device has them


@dataclass(frozen=True, eq=False, slots=True)
class Occupancy:
    """Who is on a device, and what is left of it; there is one object of each, which is its key.

    Attributes
    ----------
    kind : str
        Of the device.
    compute_milli, memory_bytes : int
        What is left.
    jobs : tuple of Job
        Those that are there, or others that are alike.
    number : int
        Its place among those that are known.
    """

    kind: str
    compute_milli: int
    memory_bytes: int
    jobs: tuple[Job, ...]
    number: int


class SharedDevices:
    """Which devices have compute left beside jobs; jobs that are alike count as the same.

    Attributes
    ----------
    known : list of Occupancy
        All that there were, in the order in which they were first seen. It only grows; when it has
        become too long there is a new list, of those that devices have, which are new objects.
    present : int
        Bits of the numbers of companies that devices have.
    """

    __slots__ = ("_devices", "_occupancies", "_occupancy_of", "known", "present")

    def __init__(self) -> None:
        self._devices: dict[Occupancy, int] = {}  # bits
        self._occupancy_of: dict[int, Occupancy] = {}
        self._occupancies: dict[object, Occupancy] = {}
        self.known: list[Occupancy] = []
        self.present = 0

    @property
    def devices(self) -> Mapping[Occupancy, int]:
        """Of each company the bits of the devices that have it, one at least."""
        return MappingProxyType(self._devices)

    def occupancy(
        self, kind: str, compute_milli: int, memory_bytes: int, jobs: Sequence[Job]
    ) -> Occupancy:
        """The company of such jobs where so much is left."""
        if len(jobs) > 1:
            jobs = sorted(jobs, key=_by_equivalence_class)
        key = kind, compute_milli, memory_bytes, tuple([job.equivalence_class for job in jobs])
        found = self._occupancies.get(key)
        if found is None:
            found = Occupancy(kind, compute_milli, memory_bytes, tuple(jobs), len(self.known))
            self._occupancies[key] = found
            self.known.append(found)
        return found

    def put(
        self, device: int, kind: str, compute_milli: int, memory_bytes: int, jobs: Sequence[Job]
    ) -> None:
        """These jobs are on a device from now on, and so much of it is left."""
        self.leave(device)
        if len(self.known) > MOST_KNOWN + 2 * len(self._devices):
            self._forget_others()
        occupancy = self.occupancy(kind, compute_milli, memory_bytes, jobs)
        self._occupancy_of[device] = occupancy
        if occupancy not in self._devices:
            self._devices[occupancy] = 0
            self.present ^= 1 << occupancy.number
        self._devices[occupancy] |= 1 << device

    def leave(self, device: int) -> None:
        """A device has no jobs, or no compute left."""
        occupancy = self._occupancy_of.pop(device, None)
        if occupancy is not None:
            self._devices[occupancy] &= ~(1 << device)
            if not self._devices[occupancy]:
                del self._devices[occupancy]
                self.present ^= 1 << occupancy.number

    def _forget_others(self) -> None:
        """Know those alone that devices have."""
        occupancy_of = self._occupancy_of
        self._devices, self._occupancy_of, self._occupancies = {}, {}, {}
        self.known, self.present = [], 0
        for device, old in occupancy_of.items():
            self.put(device, old.kind, old.compute_milli, old.memory_bytes, old.jobs)


def _by_equivalence_class(job: Job) -> str:
    return str(job.equivalence_class)
