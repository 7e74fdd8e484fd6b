"""What is remembered of shapes of jobs, of one cluster under one's forecasts."""

from __future__ import annotations

from collections.abc import Hashable

from presage.schedulers.core.cluster import DeviceColumns
from presage.schedulers.core.forecasts import Forecasts
from presage.schedulers.core.job import Job
from presage.schedulers.policies.sharing.demand import Needs, needs_of
from presage.schedulers.policies.sharing.unplaceable import Unfit


class WorkloadCache:
    """What jobs of each shape need, and which shapes fit nowhere.

    Parameters
    ----------
    overcommit : float
        How many times over a device's compute is given away.

    Attributes
    ----------
    unfit : dict of bool to Unfit
        Workload keys of best-effort jobs, and (True) of latency-sensitive ones, which may have
        devices that are kept from others.
    """

    def __init__(self, devices: DeviceColumns, forecasts: Forecasts, overcommit: float) -> None:
        self._devices, self._forecasts, self._overcommit = devices, forecasts, overcommit
        self._needs: dict[Hashable, Needs] = {}
        self.unfit = {urgent: Unfit(devices) for urgent in (False, True)}

    def __len__(self) -> int:
        return len(self._needs)

    def are_of(self, devices: DeviceColumns, forecasts: Forecasts) -> bool:
        """Whether they are of this cluster, under these forecasts."""
        return devices is self._devices and forecasts is self._forecasts

    def needs(self, workload_key: Hashable, job: Job) -> Needs:
        """What a job of a shape needs."""
        found = self._needs.get(workload_key)
        if found is None:
            found = needs_of(job, self._devices.kinds, self._forecasts, self._overcommit)
            self._needs[workload_key] = found
        return found
