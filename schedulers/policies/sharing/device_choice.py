"""Choice of a device on a node (N1, N2)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from presage.schedulers.core.capacity.free_capacity import FreeCapacity
from presage.schedulers.core.forecasts import Forecasts
from presage.schedulers.core.job import Job
from presage.schedulers.core.state import State


def choose_device(
    job: Job, fitting: Sequence[int], state: State, capacity: FreeCapacity, forecasts: Forecasts
) -> int:
    """Return the device for a job among the devices of a node that fit; there is at least one.

    A latency-sensitive job gets the device with the most free capacity (N1), a best-effort job the
    device with the shortest predicted run time with the jobs there (N2). Ties go to the device with
    the most free capacity, then to the first.
    """
    if len(fitting) == 1:
        return fitting[0]
    runtime_s = {} if job.latency_sensitive else _runtime_s(job, fitting, state, forecasts)

    def rank(device: int) -> tuple[float, int, int, int]:
        left = -int(capacity.compute_milli[device]), -int(capacity.memory_bytes[device])
        return (runtime_s.get(device, 0.0), *left, device)

    return min(fitting, key=rank)


def _runtime_s(
    job: Job, fitting: Sequence[int], state: State, forecasts: Forecasts
) -> dict[int, float]:
    """Return the run time on each device (M2): solo run time, times the predicted slowdown."""
    kind = {device: state.cluster.kind_of(device) for device in fitting}
    runtime_s = {device: forecasts.prediction(job, kind[device]).runtime_s for device in fitting}
    shared = [
        device for device in fitting if state.jobs_on(device) and runtime_s[device] < math.inf
    ]
    requests = [(kind[device], (*map(state.job, state.jobs_on(device)), job)) for device in shared]
    for device, slowdowns in zip(shared, forecasts.slowdowns(requests), strict=True):
        if slowdowns[-1] < math.inf:  # else no forecast of the slowdown is available
            runtime_s[device] *= slowdowns[-1]
    return runtime_s
