"""What a job needs of a device of each kind, by what is foretold: its utilization set (C2, M1)."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from presage.schedulers.core.allocation import FULL_DEVICE_MILLI
from presage.schedulers.core.capacity.free_capacity import FreeCapacity
from presage.schedulers.core.cluster import DeviceColumns
from presage.schedulers.core.forecasts import Forecasts, RuntimePrediction
from presage.schedulers.core.job import Job

_NEVER = np.iinfo(np.int64).max  # of a kind that will not do


class Needs(NamedTuple):
    """Of one device, by its kind, in the order of the cluster's columns.

    Attributes
    ----------
    compute_milli : tuple of int
        Thousandths of its compute, in the median.
    memory_bytes : tuple of int
        Of its memory: a bound that is exceeded with the forecaster's stated risk.
    """

    compute_milli: tuple[int, ...]
    memory_bytes: tuple[int, ...]

    def fit(self, capacity: FreeCapacity, devices: DeviceColumns) -> NDArray[np.bool_]:
        """Which devices have as much left, of compute and of memory (C2): of shape (devices,)."""
        fits: NDArray[np.bool_] = (
            capacity.compute_milli >= np.array(self.compute_milli)[devices.kind]
        )
        fits &= capacity.memory_bytes >= np.array(self.memory_bytes)[devices.kind]
        return fits


def needs_of(job: Job, kinds: tuple[str, ...], forecasts: Forecasts, overcommit: float) -> Needs:
    """What a job needs; the whole device where nothing is foretold.

    Parameters
    ----------
    overcommit : float
        How many times over a device's compute is given away; memory never is.
    """
    compute_milli, memory_bytes = [], []
    for kind in kinds:
        will_do = not job.kinds or kind in job.kinds
        prediction = forecasts.prediction(job, kind) if will_do else None
        compute_milli.append(_NEVER if prediction is None else share_of(prediction, overcommit))
        memory_bytes.append(_NEVER if prediction is None else prediction.memory_bytes)
    return Needs(tuple(compute_milli), tuple(memory_bytes))


def share_of(prediction: RuntimePrediction, overcommit: float) -> int:
    """Thousandths of a device that a job is granted; never less than one."""
    return min(FULL_DEVICE_MILLI, max(1, math.ceil(prediction.compute_milli / overcommit)))
