"""Cache of predicted needs by workload key, for one cluster and its forecasts."""

from __future__ import annotations

from collections.abc import Hashable

from presage.schedulers.core.cluster import DeviceColumns
from presage.schedulers.core.forecasts import Forecasts
from presage.schedulers.core.job import Job
from presage.schedulers.policies.sharing.needs import Needs, needs_of
from presage.schedulers.policies.sharing.unfit_workloads import Unfit


class WorkloadCache:
    """Needs of each workload key, and the keys that fit nowhere.

    Parameters
    ----------
    overcommit : float
        Factor by which predicted compute may exceed a device.

    Attributes
    ----------
    unfit : dict of bool to Unfit
        Keys that fit nowhere, of best-effort jobs and (True) of latency-sensitive jobs, which may
        use devices that are drained for others.
    """

    def __init__(self, devices: DeviceColumns, forecasts: Forecasts, overcommit: float) -> None:
        self._devices, self._forecasts, self._overcommit = devices, forecasts, overcommit
        self._needs: dict[Hashable, Needs] = {}
        self.unfit = {urgent: Unfit(devices) for urgent in (False, True)}

    def __len__(self) -> int:
        return len(self._needs)

    def is_for(self, devices: DeviceColumns, forecasts: Forecasts) -> bool:
        """Return whether the cache belongs to this cluster and these forecasts."""
        return devices is self._devices and forecasts is self._forecasts

    def needs(self, workload_key: Hashable, job: Job) -> Needs:
        """Return the needs of a job with a workload key."""
        found = self._needs.get(workload_key)
        if found is None:
            found = needs_of(job, self._devices.kinds, self._forecasts, self._overcommit)
            self._needs[workload_key] = found
        return found
