"""Occupancy and free capacity of devices, as a decision goes on to change them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from presage.schedulers.core.allocation import FULL_DEVICE_MILLI, Allocation
from presage.schedulers.core.job import Job
from presage.schedulers.core.state import State

Occupancy = tuple[str, tuple[Job, ...]]  # kind of device and the jobs on it
_NOT_EVALUATED = -1


class Tenants:
    """Jobs and free capacity of each device after the actions of a decision so far.

    Attributes
    ----------
    capacity : FreeCapacity
        Free capacity of every device.
    count : ndarray of int of shape (devices,)
        Number of jobs on each device.
    gangs : Mapping of str to tuple of Allocation
        Devices of each job that has several.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self.capacity = state.capacity()
        devices = range(state.cluster.devices)
        self.count = np.fromiter((len(state.jobs_on(device)) for device in devices), np.int64)
        held = {**state.running, **state.reserved}
        self.gangs = {
            name: one.allocations for name, one in held.items() if len(one.allocations) > 1
        }
        self._removed: set[str] = set()
        self._added: dict[int, tuple[Job, ...]] = {}
        self._occupancy_of = np.full(state.cluster.devices, _NOT_EVALUATED)
        self._occupancies: list[Occupancy] = []
        self._number: dict[tuple[str, ...], int] = {}

    def occupancies(self, devices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return occupancy numbers of devices; equal for equal kinds and equivalence classes."""
        for device in devices[self._occupancy_of[devices] == _NOT_EVALUATED].tolist():
            kind, jobs = self._state.cluster.kind_of(device), self.jobs_on(device)
            key = kind, *sorted(str(job.equivalence_class) for job in jobs)
            if key not in self._number:
                self._number[key] = len(self._occupancies)
                self._occupancies.append((kind, jobs))
            self._occupancy_of[device] = self._number[key]
        found: NDArray[np.int64] = self._occupancy_of[devices]
        return found

    def occupancy(self, number: int) -> Occupancy:
        """Return the kind of device and the jobs of an occupancy number."""
        return self._occupancies[number]

    def jobs_on(self, device: int) -> tuple[Job, ...]:
        """Return the jobs that hold or reserve a part of a device."""
        job_ids = self._state.jobs_on(device)
        jobs = tuple(self._state.job(job_id) for job_id in job_ids if job_id not in self._removed)
        return jobs + self._added.get(device, ())

    @property
    def unoccupied(self) -> NDArray[np.bool_]:
        """Mask of the devices without allocations, of shape (devices,)."""
        memory_bytes = self._state.cluster.columns.memory_bytes
        is_free: NDArray[np.bool_] = self.capacity.compute_milli == FULL_DEVICE_MILLI
        is_free &= self.capacity.memory_bytes == memory_bytes
        return is_free

    def remove(self, job_id: str) -> None:
        """Release the devices of a job."""
        self._removed.add(job_id)
        self.gangs.pop(job_id, None)
        allocations = self._state.status(job_id).allocations
        self.capacity.give(allocations)
        for allocation in allocations:
            self.count[allocation.device] -= 1
            self._occupancy_of[allocation.device] = _NOT_EVALUATED

    def add(self, job: Job, allocations: Iterable[Allocation]) -> None:
        """Allocate devices to a job."""
        allocations = tuple(allocations)
        self.capacity.take(allocations)
        if len(allocations) > 1:
            self.gangs[job.job_id] = allocations
        for allocation in allocations:
            self.count[allocation.device] += 1
            self._added[allocation.device] = (*self._added.get(allocation.device, ()), job)
            self._occupancy_of[allocation.device] = _NOT_EVALUATED
