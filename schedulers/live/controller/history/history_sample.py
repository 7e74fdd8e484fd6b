"""Sample of the state of a cluster, and its errors of forecasts."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from presage.schedulers.core.allocation import FULL_DEVICE_MILLI
from presage.schedulers.live.controller.controller_core import Core
from presage.schedulers.live.controller.elastic.members import job_of_task
from presage.schedulers.live.controller.replayed_state import LiveJob, Stage
from presage.schedulers.live.protocol.forecast_error import ForecastError, forecast_error
from presage.schedulers.v1 import cluster_pb2 as pb

_FAILED = frozenset({Stage.FAILED, Stage.TIMED_OUT})


class Sample(NamedTuple):
    """State of a cluster at a time, and the jobs that ended since the sample before.

    Attributes
    ----------
    devices : float
        Number of devices of nodes that are not lost.
    devices_in_use : float
        Number of devices with a running task.
    allocated_devices, used_devices : float
        Compute that running tasks are allocated and use, in whole devices.
    slo_violated_jobs : float
        Number of jobs that violate their SLO, or are predicted to.
    finished_jobs, failed_jobs : float
        Number of jobs that ended; jobs that exceeded their time limit count as failed.
    predicted_jobs : float
        Number of finished jobs with an error of their predicted run time.
    error_sum, greatest_error : float
        Sum and maximum of the absolute relative errors of those jobs.
    beyond_bound_jobs : float
        Number of those jobs that took longer than the upper bound of their prediction.
    """

    devices: float = 0.0
    devices_in_use: float = 0.0
    allocated_devices: float = 0.0
    used_devices: float = 0.0
    waiting_jobs: float = 0.0
    running_jobs: float = 0.0
    slo_violated_jobs: float = 0.0
    finished_jobs: float = 0.0
    failed_jobs: float = 0.0
    predicted_jobs: float = 0.0
    error_sum: float = 0.0
    greatest_error: float = 0.0
    beyond_bound_jobs: float = 0.0


class Sampler:
    """Reader of samples; it counts the jobs that ended since its last sample.

    Parameters
    ----------
    since_s : float
        Time of the cluster's clock from which ended jobs count.
    """

    def __init__(self, since_s: float) -> None:
        self._since_s = since_s

    def sample(self, core: Core, now_s: float) -> Sample:
        """Return the current sample."""
        ended = list(_ended_after(core, self._since_s))
        self._since_s = max([self._since_s, *(job.since_s for job in ended)])
        stages = core.state.stages
        found = _use_of_devices(core)._replace(
            waiting_jobs=stages[Stage.WAITING], running_jobs=stages[Stage.RUNNING]
        )
        return _add_ended(found, core, ended)


def _ended_after(core: Core, since_s: float) -> Iterator[LiveJob]:
    for job_id in reversed(core.state.ended):
        job = core.state.jobs[job_id]
        if job.since_s <= since_s:
            return
        yield job


def _use_of_devices(core: Core) -> Sample:
    devices = in_use = 0
    allocated_milli = used_milli = 0.0
    violated: set[tuple[str, int]] = set()
    for node in core.state.nodes.values():
        if node.lost:
            continue
        devices += len(node.devices)
        busy: set[int] = set()
        for task in core.nodes[node.name].tasks.values():
            if task.slo_violated:
                violated.add((job_of_task(task.job_id)[0], task.attempt))
            if task.phase != pb.TASK_RUNNING:
                continue
            allocations = task.allocations
            if math.isfinite(task.usage_milli):
                # A task reports the mean over its devices.
                used_milli += task.usage_milli * len(allocations)
            for one in allocations:
                busy.add(one.device)
                allocated_milli += one.compute_milli
        in_use += len(busy)
    return Sample(
        devices=devices,
        devices_in_use=in_use,
        allocated_devices=allocated_milli / FULL_DEVICE_MILLI,
        used_devices=used_milli / FULL_DEVICE_MILLI,
        slo_violated_jobs=len(violated),
    )


def _add_ended(found: Sample, core: Core, ended: list[LiveJob]) -> Sample:
    errors = [one for job in ended if (one := _error_of(core, job)) is not None]
    sizes = [abs(one.relative) for one in errors]
    return found._replace(
        finished_jobs=sum(job.stage is Stage.FINISHED for job in ended),
        failed_jobs=sum(job.stage in _FAILED for job in ended),
        predicted_jobs=len(errors),
        error_sum=sum(sizes),
        greatest_error=max(sizes, default=0.0),
        beyond_bound_jobs=sum(one.exceeds_bound for one in errors),
    )


def _error_of(core: Core, job: LiveJob) -> ForecastError | None:
    """Return the error of the prediction of a job; None if it says nothing about forecasts."""
    is_comparable = job.stage is Stage.FINISHED and job.starts == 1 and not job.is_elastic
    if not is_comparable or job.first_start_s is None:
        return None
    node = core.state.nodes.get(job.node)
    device = job.allocations[0][0] if job.allocations else 0
    if node is None or device >= len(node.devices):
        return None
    kind = node.devices[device][0]
    prediction = next((one for one in job.prediction_messages if one.kind == kind), None)
    return forecast_error(prediction, job.since_s - job.first_start_s)
