"""Jobs as rows of numbers, kept between decisions while neither the job nor its status changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from presage.schedulers.core.capacity.resource_requests import gang_size
from presage.schedulers.core.cluster import Cluster
from presage.schedulers.core.job import Job
from presage.schedulers.core.job_status import JobStatus
from presage.system.arrays import Array, Int64s

_NO_DEVICES = np.empty(0, np.int64)


class JobRow(NamedTuple):
    """Job, the status of a running job, and their numbers.

    Attributes
    ----------
    values : ndarray of shape (8,)
        Fields of :class:`JobColumns`.
    devices : ndarray of int, shape (members,)
        Devices of a running job.
    """

    job: Job
    status: JobStatus | None
    values: Array
    devices: Int64s


class JobColumns(NamedTuple):
    """Numbers of J jobs, of shape (J,) each; the last three are 0 for pending jobs.

    Attributes
    ----------
    gang : ndarray
        Number of devices that a pending job gets.
    gpus : ndarray
        Number of devices that the job requests.
    interval_s, cost_s, restart_s : ndarray
        Checkpoints.
    since_s : ndarray
        Time since which the job has its devices.
    starts, members : ndarray
        Number of starts, and of devices.
    """

    gang: Array
    gpus: Array
    interval_s: Array
    cost_s: Array
    restart_s: Array
    since_s: Array
    starts: Array
    members: Array


class JobRows:
    """Rows of the jobs of the last decision; only jobs that have changed are read again."""

    def __init__(self) -> None:
        self._rows: dict[str, JobRow] = {}
        self._cluster: Cluster | None = None

    def read(
        self, jobs: Sequence[Job], statuses: Sequence[JobStatus], cluster: Cluster
    ) -> tuple[JobColumns, Sequence[Int64s]]:
        """Return the numbers of jobs, and the devices of the running ones.

        Parameters
        ----------
        jobs : sequence of Job
            Pending jobs, then running jobs.
        statuses : sequence of JobStatus
            Status of each running job.
        """
        if cluster is not self._cluster:
            self._rows, self._cluster = {}, cluster
        first, rows = len(jobs) - len(statuses), list[JobRow]()
        for job, status in zip(jobs, [*[None] * first, *statuses], strict=True):
            row = self._rows.get(job.job_id)
            if row is None or row.job is not job or row.status is not status:
                row = _make_row(job, status, cluster)
            rows.append(row)
        self._rows = {row.job.job_id: row for row in rows}
        values = np.concatenate([np.empty(0), *[row.values for row in rows]])
        columns = np.ascontiguousarray(values.reshape(-1, len(JobColumns._fields)).T)
        return JobColumns(*columns), [row.devices for row in rows[first:]]


def _make_row(job: Job, status: JobStatus | None, cluster: Cluster) -> JobRow:
    costs = job.checkpointing
    fixed = gang_size(job, cluster), job.gpus, costs.interval_s, costs.cost_s, costs.restart_s
    if status is None:
        return JobRow(job, None, np.array([*fixed, 0.0, 0.0, 0.0]), _NO_DEVICES)
    devices = np.array([one.device for one in status.allocations], np.int64)
    values = np.array([*fixed, status.since_s, status.starts, len(devices)])
    return JobRow(job, status, values, devices)
