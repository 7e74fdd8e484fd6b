"""Sample of the state of a cluster, and its errors of forecasts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from presage.schedulers.core.allocation import FULL_DEVICE_MILLI
from presage.schedulers.health.device_reading import reported as reported_reading
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
    hottest_c : float
        Temperature of the hottest device; 0 if no device reports one.
    power_w : float
        Power of all devices that report it; 0 if none does.
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
    hottest_c: float = 0.0
    power_w: float = 0.0


class _NodeReport(NamedTuple):
    devices: int
    tasks: Mapping[str, pb.Task]
    reported: Sequence[pb.Device]


class Snapshot(NamedTuple):
    """What a sample needs of the core: references to reports, which are replaced and not changed.

    Attributes
    ----------
    of_jobs : Sample
        Numbers of jobs.
    nodes : list
        Reports of the nodes that are not lost.
    """

    of_jobs: Sample
    nodes: list[_NodeReport]

    def sample(self) -> Sample:
        """Return the sample; it needs no lock."""
        return _add_devices(self.of_jobs, self.nodes)


class Sampler:
    """Reader of samples; it counts the jobs that ended since its last sample.

    Parameters
    ----------
    since_s : float
        Time of the cluster's clock from which ended jobs count.
    """

    def __init__(self, since_s: float) -> None:
        self._since_s = since_s

    def snapshot(self, core: Core, now_s: float) -> Snapshot:
        """Return what the current sample needs, while the core does not change."""
        ended = list(_ended_after(core, self._since_s))
        self._since_s = max([self._since_s, *(job.since_s for job in ended)])
        stages = core.state.stages
        found = Sample(waiting_jobs=stages[Stage.WAITING], running_jobs=stages[Stage.RUNNING])
        return Snapshot(_add_ended(found, core, ended), list(_reports(core)))


def _ended_after(core: Core, since_s: float) -> Iterator[LiveJob]:
    for job_id in reversed(core.state.ended):
        job = core.state.jobs[job_id]
        if job.since_s <= since_s:
            return
        yield job


def _reports(core: Core) -> Iterator[_NodeReport]:
    for node in core.state.nodes.values():
        if not node.lost:
            known = core.nodes[node.name]
            reported = () if known.report is None else known.report.devices
            yield _NodeReport(len(node.devices), known.tasks, reported)


def _add_devices(found: Sample, nodes: Sequence[_NodeReport]) -> Sample:
    """Add the use, temperature and power of devices."""
    in_use = 0
    allocated_milli = used_milli = hottest_c = power_w = 0.0
    violated: set[tuple[str, int]] = set()
    for node in nodes:
        busy: set[int] = set()
        for task in node.tasks.values():
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
        for device in node.reported:
            reading = reported_reading(device)
            hottest_c = max(hottest_c, reading.temperature_c or 0.0)
            power_w += reading.power_w or 0.0
    return found._replace(
        devices=sum(node.devices for node in nodes),
        devices_in_use=in_use,
        allocated_devices=allocated_milli / FULL_DEVICE_MILLI,
        used_devices=used_milli / FULL_DEVICE_MILLI,
        slo_violated_jobs=len(violated),
        hottest_c=hottest_c,
        power_w=power_w,
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
