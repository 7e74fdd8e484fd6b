"""Devices with room beside jobs, less what a decision takes and with what it adds."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from presage.schedulers.core.allocation import Allocation
from presage.schedulers.core.capacity.shared_devices import Occupancy
from presage.schedulers.core.forecasts import Forecasts
from presage.schedulers.core.job import Job
from presage.schedulers.core.state import State
from presage.schedulers.policies.packing.compatibility import Compatibility, Limits


class SharedCapacity:
    """Where a decision may put jobs beside others.

    Attributes
    ----------
    present : int
        Bits of the numbers of companies that devices have, or had when the decision began.
    """

    def __init__(self, state: State, forecasts: Forecasts, limits: Limits) -> None:
        self._state, self._forecasts, self._limits = state, forecasts, limits
        self._devices = dict(state.shared.devices)  # of each company the bits of its devices
        self.present = state.shared.present
        self._spared = 0  # bits of devices

    def __bool__(self) -> bool:
        """Whether there may be one."""
        return bool(self._devices)

    def spare(self, nodes: Iterable[int]) -> None:
        """Put nobody on these nodes."""
        for node in nodes:
            there = self._state.cluster.devices_of(node)
            self._spared |= (1 << there.stop) - (1 << there.start)

    def spare_one(self, kinds: Collection[str]) -> None:
        """Put nobody on a device of these kinds, so that it runs dry.

        It is the first on which somebody is and nobody new is put yet: the same one again and
        again, or one before it, until it is idle.
        """
        free = [
            left & -left
            for occupancy, bits in self._devices.items()
            if (not kinds or occupancy.kind in kinds) and (left := bits & ~self._spared)
        ]
        self._spared |= min(free, default=0)

    @property
    def occupancies(self) -> Collection[Occupancy]:
        """Those that devices have."""
        return self._devices.keys()

    def best(self, neighbour: Compatibility) -> tuple[int, Occupancy] | None:
        """The device where whoever is slowed most is slowed least, the first of equals; who is
        there; None if there is none.
        """
        found = [
            (neighbour.slowest[occupancy], bits & -bits, occupancy)
            for occupancy in neighbour.slowest.keys() & self._devices.keys()
            if (bits := self._devices[occupancy] & ~self._spared)
        ]
        if not found:
            return None
        _, bit, occupancy = min(found)  # no two have the same device
        return bit.bit_length() - 1, occupancy

    def part(self, job: Job, device: int) -> Allocation:
        """What a job would be granted of a device."""
        prediction = self._forecasts.prediction(job, self._state.cluster.kind_of(device))
        return Allocation(device, *self._limits.needs(prediction))

    def whole(self, job: Job, whole: Allocation) -> Allocation:
        """What a job gets of a device that nobody is on; what is left is a place."""
        kind = self._state.cluster.kind_of(whole.device)
        allocation = self.part(job, whole.device)
        self._leave(kind, whole.compute_milli, whole.memory_bytes, (job,), allocation)
        return allocation

    def beside(self, job: Job, device: int, occupancy: Occupancy) -> Allocation:
        """What a job gets where a company is; what is left is a place."""
        self._devices[occupancy] ^= 1 << device
        if not self._devices[occupancy]:
            del self._devices[occupancy]
        allocation = self.part(job, device)
        left = occupancy.compute_milli, occupancy.memory_bytes
        self._leave(occupancy.kind, *left, (*occupancy.jobs, job), allocation)
        return allocation

    def _leave(
        self,
        kind: str,
        compute_milli: int,
        memory_bytes: int,
        jobs: tuple[Job, ...],
        allocation: Allocation,
    ) -> None:
        """So much was there before a job was granted a part of it."""
        compute_milli -= allocation.compute_milli
        if compute_milli > 0 and len(jobs) < self._limits.most_members:
            memory_bytes -= allocation.memory_bytes
            left = self._state.shared.occupancy(kind, compute_milli, memory_bytes, jobs)
            self._devices[left] = self._devices.get(left, 0) | 1 << allocation.device
            self.present |= 1 << left.number
