"""Predicted needs of a job on devices of each kind: its utilization set (C2, M1)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from presage.schedulers.core.capacity.free_capacity import FreeCapacity
from presage.schedulers.core.cluster import DeviceColumns
from presage.schedulers.core.forecasts import Forecasts, RuntimePrediction
from presage.schedulers.core.job import Job
from presage.schedulers.core.policy import Demand, predicted_demand

NEVER = Demand(np.iinfo(np.int64).max, np.iinfo(np.int64).max)  # on kinds that the job excludes


class Needs(NamedTuple):
    """Needs of a job on one device, by kind, in the order of the cluster's columns.

    Attributes
    ----------
    compute_milli : tuple of int
        Thousandths of the device's compute; predicted medians.
    memory_bytes : tuple of int
        Bytes of the device's memory; predicted bounds, exceeded with the forecaster's stated risk.
    """

    compute_milli: tuple[int, ...]
    memory_bytes: tuple[int, ...]

    def fit(self, capacity: FreeCapacity, devices: DeviceColumns) -> NDArray[np.bool_]:
        """Return which devices have enough free compute and memory (C2), of shape (devices,)."""
        if len(devices.kinds) == 1:  # in a large cluster reading by device takes longest
            compute_milli, memory_bytes = self.compute_milli[0], self.memory_bytes[0]
            fits: NDArray[np.bool_] = capacity.compute_milli >= compute_milli
            fits &= capacity.memory_bytes >= memory_bytes
            return fits
        fits = capacity.compute_milli >= np.array(self.compute_milli)[devices.kind]
        fits &= capacity.memory_bytes >= np.array(self.memory_bytes)[devices.kind]
        return fits

    def fit_on(
        self, numbers: NDArray[np.int64], capacity: FreeCapacity, devices: DeviceColumns
    ) -> NDArray[np.bool_]:
        """Return :meth:`fit` of the devices with these numbers, of the shape of ``numbers``."""
        kind = devices.kind[numbers]
        fits: NDArray[np.bool_] = (
            capacity.compute_milli[numbers] >= np.array(self.compute_milli)[kind]
        )
        fits &= capacity.memory_bytes[numbers] >= np.array(self.memory_bytes)[kind]
        return fits


def needs_of(job: Job, kinds: tuple[str, ...], forecasts: Forecasts, overcommit: float) -> Needs:
    """Return the predicted needs of a job; an exclusive device where no forecast is available.

    Parameters
    ----------
    overcommit : float
        Factor by which predicted compute may exceed a device; memory is never overcommitted.
    """
    found = [
        predicted_demand(forecasts.prediction(job, kind), overcommit)
        if not job.kinds or kind in job.kinds
        else NEVER
        for kind in kinds
    ]
    return Needs(
        tuple(demand.compute_milli for demand in found),
        tuple(demand.memory_bytes for demand in found),
    )


def share_of(prediction: RuntimePrediction, overcommit: float) -> int:
    """Return the thousandths of a device that are allocated to a job; at least one."""
    return predicted_demand(prediction, overcommit).compute_milli
