"""Co-location under the policy ``elastic``: predicted slowdowns, and which jobs may share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from presage.schedulers.core.allocation import Allocation
from presage.schedulers.core.forecasts import Forecasts
from presage.schedulers.core.job import Job
from presage.schedulers.core.state import State
from presage.schedulers.policies.elastic.contender import Contender
from presage.schedulers.policies.elastic.device_shares import (
    Sharer,
    divide_device,
    worker_bound_bytes,
)
from presage.schedulers.policies.elastic.occupants import Occupants


class SharingLimits(NamedTuple):
    """Limits of co-location on a device.

    Attributes
    ----------
    jobs_per_device : int
        Largest number of jobs.
    most_slowdown : float
        Largest predicted slowdown of any of them.
    """

    jobs_per_device: int
    most_slowdown: float


class CoLocations:
    """Predicted slowdowns of co-located jobs, and the shares of each device.

    Parameters
    ----------
    contenders : mapping of str to Contender
        Running and waiting jobs by id.
    """

    def __init__(
        self,
        state: State,
        forecasts: Forecasts,
        occupants: Occupants,
        contenders: Mapping[str, Contender],
        limits: SharingLimits,
    ) -> None:
        self._cluster, self._forecasts, self._limits = state.cluster, forecasts, limits
        self._occupants, self._contenders = occupants, contenders
        self._before = {
            (one.job.job_id, allocation.device): allocation
            for one in contenders.values()
            for allocation in one.status.allocations
        }

    def before(self, job_id: str, device: int) -> Allocation | None:
        """Return what a job had of a device when the decision began."""
        return self._before.get((job_id, device))

    def slowdown(self, job_id: str, devices: Iterable[int]) -> float:
        """Return the slowdown of a job on some devices, at least 1: that of its slowest worker."""
        shared = [device for device in devices if {*self._occupants.on(device)} - {job_id}]
        rows = [self._with(device, job_id) for device in shared]
        predicted = self._forecasts.slowdowns([self._request(*row) for row in rows])
        return max(
            (
                each[ids.index(job_id)]
                for (_, ids), each in zip(rows, predicted, strict=True)
            ),
            default=1.0,
        )  # fmt: skip

    def shares(self, device: int, job_ids: Sequence[str], joining: int = 0) -> list[Allocation]:
        """Return what each of some jobs gets of a device; [] if it has too little memory.

        Parameters
        ----------
        joining : int
            Number of devices that a job that joins will have.
        """
        full = self._cluster.full_allocations[device]
        sharers = [self._sharer(job_id, device, joining) for job_id in job_ids]
        if len(sharers) == 1:
            return [sharers[0].fixed or full]
        return divide_device(full, sharers) or []

    def are_enough(self, device: int, job_ids: Sequence[str], shares: Sequence[Allocation]) -> bool:
        """Return whether no share of memory on a device is below the bound of its job."""
        sharers = [self._sharer(job_id, device) for job_id in job_ids]
        return all(
            sharer.fixed is not None or share.memory_bytes >= sharer.bound_bytes
            for sharer, share in zip(sharers, shares, strict=True)
        )

    def _sharer(self, job_id: str, device: int, joining: int = 0) -> Sharer:
        one = self._contenders[job_id]
        size = len(self._occupants.devices_of(job_id)) or joining
        prediction = self._forecasts.prediction(one.job, self._cluster.kind_of(device))
        fixed = None if one.is_resizable else self.before(job_id, device)
        bound_bytes = worker_bound_bytes(one.job, prediction, size)
        return Sharer(bound_bytes, prediction.compute_milli, fixed)

    def joinable(
        self, one: Contender, devices: Iterable[int], size: int
    ) -> list[tuple[float, int]]:
        """Return the devices that a job may share, each with the gain, the largest gain first.

        The gain is the work of all jobs per second that is done in addition, in devices.

        Parameters
        ----------
        size : int
            Number of devices that the job will have.
        """
        rows = [self._with(device, one.job.job_id) for device in self._fitting(one, devices, size)]
        predicted = self._forecasts.slowdowns([self._request(*row) for row in rows])
        found = []
        for (device, ids), slowdowns in zip(rows, predicted, strict=True):
            if max(slowdowns) <= self._limits.most_slowdown:
                by_job = dict(zip(ids, slowdowns, strict=True))
                gain = self._gain(one.job.job_id, by_job)
                if gain > 0:
                    found.append((gain, device))
        return sorted(found, key=lambda row: (-row[0], row[1]))

    def _fitting(self, one: Contender, devices: Iterable[int], size: int) -> Iterator[int]:
        """Yield the devices whose number of jobs, kind and memory allow for another job."""
        for device in devices:
            there = self._occupants.on(device)
            if not 0 < len(there) < self._limits.jobs_per_device:
                continue
            if not all(self._contenders[job_id].is_shareable for job_id in there):
                continue
            kind = self._cluster.kind_of(device)
            if one.job.kinds and kind not in one.job.kinds:
                continue
            if self.shares(device, [*there, one.job.job_id], size):
                yield device

    def _gain(self, joining: str, slowdowns: Mapping[str, float]) -> float:
        gain = 1.0 / slowdowns[joining]
        for job_id, slowdown in slowdowns.items():
            if job_id != joining:
                devices = self._occupants.devices_of(job_id)
                now = self.slowdown(job_id, devices)
                gain -= len(devices) * (1.0 / now - 1.0 / max(now, slowdown))
        return gain

    def _with(self, device: int, job_id: str) -> tuple[int, list[str]]:
        """Return a device with the jobs on it, a job included that may join them."""
        there = self._occupants.on(device)
        return device, [*there] if job_id in there else [*there, job_id]

    def _request(self, device: int, job_ids: Sequence[str]) -> tuple[str, tuple[Job, ...]]:
        jobs = tuple(self._contenders[job_id].job for job_id in job_ids)
        return self._cluster.kind_of(device), jobs
