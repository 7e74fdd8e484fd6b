"""Shared devices with free capacity, as a decision goes on to change them."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from presage.schedulers.core.allocation import Allocation
from presage.schedulers.core.capacity.shared_devices import Occupancy
from presage.schedulers.core.forecasts import Forecasts
from presage.schedulers.core.job import Job
from presage.schedulers.core.state import State
from presage.schedulers.policies.packing.compatibility import Compatibility, Limits


class SharedCapacity:
    """Devices on which a decision may co-locate jobs.

    Attributes
    ----------
    present : int
        Bit set of the numbers of occupancies that devices have, or had when the decision began.
    """

    def __init__(self, state: State, forecasts: Forecasts, limits: Limits) -> None:
        self._state, self._forecasts, self._limits = state, forecasts, limits
        self._devices = dict(state.shared.devices)  # bit set of each occupancy's devices
        self.present = state.shared.present
        self._drained = 0  # bits of devices

    def __bool__(self) -> bool:
        """Return whether there may be a place."""
        return bool(self._devices)

    def drain(self, nodes: Iterable[int]) -> None:
        """Start no jobs on these nodes."""
        for node in nodes:
            devices = self._state.cluster.devices_of(node)
            self._drained |= (1 << devices.stop) - (1 << devices.start)

    def drain_one(self, kinds: Collection[str]) -> None:
        """Drain a device of these kinds: the first with free capacity that is not drained yet.

        It is the same device at each decision, or one before it, until it is idle.
        """
        free = [
            left & -left
            for occupancy, bits in self._devices.items()
            if (not kinds or occupancy.kind in kinds) and (left := bits & ~self._drained)
        ]
        self._drained |= min(free, default=0)

    @property
    def occupancies(self) -> Collection[Occupancy]:
        """Occupancies that devices have."""
        return self._devices.keys()

    def best(self, compatibility: Compatibility) -> tuple[int, Occupancy] | None:
        """Return the device with the smallest largest slowdown, and its occupancy; None if none.

        Ties go to the first device.
        """
        found = [
            (compatibility.slowest[occupancy], bits & -bits, occupancy)
            for occupancy in compatibility.slowest.keys() & self._devices.keys()
            if (bits := self._devices[occupancy] & ~self._drained)
        ]
        if not found:
            return None
        _, bit, occupancy = min(found)  # no two have the same device
        return bit.bit_length() - 1, occupancy

    def allocation(self, job: Job, device: int) -> Allocation:
        """Return what a job would be allocated on a device."""
        prediction = self._forecasts.prediction(job, self._state.cluster.kind_of(device))
        return Allocation(device, *self._limits.needs(prediction))

    def place_on_idle(self, job: Job, full: Allocation) -> Allocation:
        """Return a job's allocation on an idle device; the rest becomes a place."""
        kind = self._state.cluster.kind_of(full.device)
        allocation = self.allocation(job, full.device)
        self._add_remainder(kind, full.compute_milli, full.memory_bytes, (job,), allocation)
        return allocation

    def co_locate(self, job: Job, device: int, occupancy: Occupancy) -> Allocation:
        """Return a job's allocation on a shared device; the rest becomes a place."""
        self._devices[occupancy] ^= 1 << device
        if not self._devices[occupancy]:
            del self._devices[occupancy]
        allocation = self.allocation(job, device)
        left = occupancy.compute_milli, occupancy.memory_bytes
        self._add_remainder(occupancy.kind, *left, (*occupancy.jobs, job), allocation)
        return allocation

    def _add_remainder(
        self,
        kind: str,
        compute_milli: int,
        memory_bytes: int,
        jobs: tuple[Job, ...],
        allocation: Allocation,
    ) -> None:
        """Add the place that remains of a free capacity after an allocation."""
        compute_milli -= allocation.compute_milli
        if compute_milli > 0 and len(jobs) < self._limits.most_members:
            memory_bytes -= allocation.memory_bytes
            left = self._state.shared.occupancy(kind, compute_milli, memory_bytes, jobs)
            self._devices[left] = self._devices.get(left, 0) | 1 << allocation.device
            self.present |= 1 << left.number
