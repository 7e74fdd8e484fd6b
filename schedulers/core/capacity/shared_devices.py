"""Index of devices with jobs and free capacity, grouped by occupancy.

In a large cluster many devices have the same occupancy, and one forecast serves all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from presage.schedulers.core.job import Job

MAX_UNUSED = 10_000  # occupancies that are kept although no device has them


@dataclass(frozen=True, eq=False, slots=True)
class Occupancy:
    """Jobs on a device and its free capacity; unique objects that serve as keys.

    Attributes
    ----------
    kind : str
        Kind of the device.
    compute_milli, memory_bytes : int
        Free compute and memory of the device.
    jobs : tuple of Job
        The jobs on the device, or jobs of the same equivalence classes.
    number : int
        Position in :attr:`SharedDevices.occupancies`.
    """

    kind: str
    compute_milli: int
    memory_bytes: int
    jobs: tuple[Job, ...]
    number: int


class SharedDevices:
    """Devices that have jobs and free compute; jobs of one equivalence class count as the same.

    Attributes
    ----------
    occupancies : list of Occupancy
        All occupancies in order of appearance. The list only grows; once it is too long, it is
        replaced by a new list with new objects for the occupancies that devices have.
    present : int
        Bit set of the numbers of occupancies that devices have now.
    """

    __slots__ = ("_by_key", "_devices", "_occupancy_of", "occupancies", "present")

    def __init__(self) -> None:
        self._devices: dict[Occupancy, int] = {}  # bits
        self._occupancy_of: dict[int, Occupancy] = {}
        self._by_key: dict[object, Occupancy] = {}
        self.occupancies: list[Occupancy] = []
        self.present = 0

    @property
    def devices(self) -> Mapping[Occupancy, int]:
        """Bit set of the devices of each occupancy; never empty."""
        return MappingProxyType(self._devices)

    def occupancy(
        self, kind: str, compute_milli: int, memory_bytes: int, jobs: Sequence[Job]
    ) -> Occupancy:
        """Return the occupancy of a device with these jobs and this free capacity."""
        if len(jobs) > 1:
            jobs = sorted(jobs, key=_by_equivalence_class)
        key = kind, compute_milli, memory_bytes, tuple([job.equivalence_class for job in jobs])
        found = self._by_key.get(key)
        if found is None:
            found = Occupancy(kind, compute_milli, memory_bytes, tuple(jobs), len(self.occupancies))
            self._by_key[key] = found
            self.occupancies.append(found)
        return found

    def put(
        self, device: int, kind: str, compute_milli: int, memory_bytes: int, jobs: Sequence[Job]
    ) -> None:
        """Set the jobs and the free capacity of a device."""
        self.remove(device)
        if len(self.occupancies) > MAX_UNUSED + 2 * len(self._devices):
            self._drop_unused()
        occupancy = self.occupancy(kind, compute_milli, memory_bytes, jobs)
        self._occupancy_of[device] = occupancy
        if occupancy not in self._devices:
            self._devices[occupancy] = 0
            self.present ^= 1 << occupancy.number
        self._devices[occupancy] |= 1 << device

    def remove(self, device: int) -> None:
        """Remove a device that has no jobs or no free compute."""
        occupancy = self._occupancy_of.pop(device, None)
        if occupancy is not None:
            self._devices[occupancy] &= ~(1 << device)
            if not self._devices[occupancy]:
                del self._devices[occupancy]
                self.present ^= 1 << occupancy.number

    def _drop_unused(self) -> None:
        """Drop the occupancies that no device has."""
        occupancy_of = self._occupancy_of
        self._devices, self._occupancy_of, self._by_key = {}, {}, {}
        self.occupancies, self.present = [], 0
        for device, old in occupancy_of.items():
            self.put(device, old.kind, old.compute_milli, old.memory_bytes, old.jobs)


def _by_equivalence_class(job: Job) -> str:
    return str(job.equivalence_class)
