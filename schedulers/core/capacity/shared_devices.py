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
class Company:
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
    known : list of Company
        All that there were, in the order in which they were first seen. It only grows; when it has
        become too long there is a new list, of those that devices have, which are new objects.
    present : int
        Bits of the numbers of companies that devices have.
    """

    __slots__ = ("_companies", "_company_of", "_devices", "known", "present")

    def __init__(self) -> None:
        self._devices: dict[Company, int] = {}  # bits
        self._company_of: dict[int, Company] = {}
        self._companies: dict[object, Company] = {}
        self.known: list[Company] = []
        self.present = 0

    @property
    def devices(self) -> Mapping[Company, int]:
        """Of each company the bits of the devices that have it, one at least."""
        return MappingProxyType(self._devices)

    def company(
        self, kind: str, compute_milli: int, memory_bytes: int, jobs: Sequence[Job]
    ) -> Company:
        """The company of such jobs where so much is left."""
        if len(jobs) > 1:
            jobs = sorted(jobs, key=_by_likeness)
        key = kind, compute_milli, memory_bytes, tuple([job.likeness for job in jobs])
        found = self._companies.get(key)
        if found is None:
            found = Company(kind, compute_milli, memory_bytes, tuple(jobs), len(self.known))
            self._companies[key] = found
            self.known.append(found)
        return found

    def put(
        self, device: int, kind: str, compute_milli: int, memory_bytes: int, jobs: Sequence[Job]
    ) -> None:
        """These jobs are on a device from now on, and so much of it is left."""
        self.leave(device)
        if len(self.known) > MOST_KNOWN + 2 * len(self._devices):
            self._forget_others()
        company = self.company(kind, compute_milli, memory_bytes, jobs)
        self._company_of[device] = company
        if company not in self._devices:
            self._devices[company] = 0
            self.present ^= 1 << company.number
        self._devices[company] |= 1 << device

    def leave(self, device: int) -> None:
        """A device has no jobs, or no compute left."""
        company = self._company_of.pop(device, None)
        if company is not None:
            self._devices[company] &= ~(1 << device)
            if not self._devices[company]:
                del self._devices[company]
                self.present ^= 1 << company.number

    def _forget_others(self) -> None:
        """Know those alone that devices have."""
        company_of = self._company_of
        self._devices, self._company_of, self._companies = {}, {}, {}
        self.known, self.present = [], 0
        for device, old in company_of.items():
            self.put(device, old.kind, old.compute_milli, old.memory_bytes, old.jobs)


def _by_likeness(job: Job) -> str:
    return str(job.likeness)
