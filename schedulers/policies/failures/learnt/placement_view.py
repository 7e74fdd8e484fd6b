"""Cluster and jobs as arrays, which a learned policy observes and changes during one decision."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from presage.schedulers.core.allocation import Allocation
from presage.schedulers.core.capacity.resource_requests import gang_size
from presage.schedulers.core.forecasts import Forecasts
from presage.schedulers.core.job import Job
from presage.schedulers.core.job_status import JobStatus
from presage.schedulers.core.state import State
from presage.schedulers.policies.failures.completion import daly_interval_s
from presage.schedulers.policies.failures.device_order import Devices, Mask
from presage.system.arrays import Array, Int64s

IDLE, DOWN = -1, -2  # holders of a device that no listed job has


@dataclass(slots=True)
class PlacementView:
    """Pending jobs with forecasts, then running jobs, and the devices.

    Attributes
    ----------
    jobs : sequence of Job
        J jobs.
    gpus : ndarray of int, shape (J,)
        Number of devices of each gang.
    runtime_s, interval_s, cost_s, restart_s : ndarray of shape (J,)
        Predicted run time without failures, and the checkpoints.
    saved : ndarray of shape (J,)
        Fraction of a pending job that its last checkpoint holds.
    is_running : ndarray of bool, shape (J,)
    end_s : ndarray of shape (J,)
        Predicted end of running jobs; infinite for others.
    rates_per_s : ndarray of shape (N,)
        Failure rate of each device.
    holder : ndarray of int, shape (N,)
        Position of the job on each device; ``IDLE``; or ``DOWN`` if it cannot be used.
    safest : ndarray of int, shape (N,)
        Devices by rising failure rate.
    allowed : sequence of Mask
        Devices whose kind each job accepts, of shape (N,).
    now_s, repair_s : float
        Present time, and the expected time to repair.
    """

    jobs: Sequence[Job]
    gpus: Int64s
    runtime_s: Array
    interval_s: Array
    cost_s: Array
    restart_s: Array
    saved: Array
    is_running: Mask
    end_s: Array
    rates_per_s: Array
    holder: Int64s
    safest: Int64s
    allowed: Sequence[Mask]
    now_s: float
    repair_s: float

    def remaining_s(self, j: int) -> float:
        """Return the run time that a pending job has left from its last checkpoint on."""
        return float((1.0 - self.saved[j]) * self.runtime_s[j])

    def start(self, j: int, devices: Devices, interval_s: float) -> None:
        """Mark a pending job as started on devices, with a time between checkpoints."""
        self.holder[devices] = j
        self.is_running[j] = True
        pace_s = self.runtime_s[j] * (1 + self.cost_s[j] / interval_s)
        since_s = self.now_s + (self.restart_s[j] if self.saved[j] > 0 else 0.0)
        self.end_s[j] = since_s + (1.0 - self.saved[j]) * pace_s


def read_view(
    state: State,
    forecasts: Forecasts,
    rates_per_s: Array,
    repair_s: float,
    usable: Mask,
    *,
    sets_interval: bool = False,
) -> PlacementView:
    """Return the view of a state; pending jobs without a forecast are omitted.

    Parameters
    ----------
    rates_per_s : ndarray of shape (N,)
        Failure rates, finite and at least 0.
    repair_s : float
        Expected time from a failure until a job has devices again.
    usable : ndarray of bool, shape (N,)
        Idle devices.
    sets_interval : bool
        Whether running jobs have the best checkpoint interval for their devices.
    """
    pending = [job for job in state.pending if forecasts.runtime_s(job) < math.inf]
    running = [(state.job(job_id), status) for job_id, status in state.running.items()]
    jobs = [*pending, *(job for job, _ in running)]
    count, columns = len(jobs), state.cluster.columns
    holder = np.where(usable, IDLE, DOWN)
    end_s = np.full(count, math.inf)
    for j, (job, status) in enumerate(running, start=len(pending)):
        devices = np.array([one.device for one in status.allocations])
        holder[devices] = j
        interval_s = used_interval_s(job, devices, rates_per_s, sets_interval=sets_interval)
        end_s[j] = release_s(job, status, interval_s, state, forecasts)
    costs = [job.checkpointing for job in jobs]
    everywhere = np.ones(len(rates_per_s), bool)
    return PlacementView(
        jobs=jobs,
        gpus=np.array([gang_size(job, state.cluster) for job in jobs], np.int64),
        runtime_s=np.array([forecasts.runtime_s(job) for job in jobs]),
        interval_s=np.array([one.interval_s for one in costs]),
        cost_s=np.array([one.cost_s for one in costs]),
        restart_s=np.array([one.restart_s for one in costs]),
        saved=np.array([state.progress(job.job_id) for job in jobs]),
        is_running=np.arange(count) >= len(pending),
        end_s=end_s,
        rates_per_s=rates_per_s,
        holder=holder,
        safest=np.argsort(rates_per_s, kind="stable"),
        allowed=[columns.has_kind(job.kinds) if job.kinds else everywhere for job in jobs],
        now_s=state.now_s,
        repair_s=repair_s,
    )


def used_interval_s(
    job: Job, devices: Devices, rates_per_s: Array, *, sets_interval: bool
) -> float:
    """Return the time between checkpoints of a job on devices; infinite without checkpoints."""
    costs = job.checkpointing
    if not sets_interval or costs.interval_s == math.inf:
        return costs.interval_s
    return daly_interval_s(sum(rates_per_s[devices].tolist()), costs.cost_s)


def release_s(
    job: Job, status: JobStatus, interval_s: float, state: State, forecasts: Forecasts
) -> float:
    """Return when a running job is predicted to release its devices, if none of them fails.

    A job that continues from a checkpoint first restarts; a job that begins again does not.
    """
    runtime_s = _runtime_s(job, status.allocations, state, forecasts)
    costs = job.checkpointing
    left_s = (1.0 - state.progress(job.job_id)) * runtime_s * (1 + costs.cost_s / interval_s)
    continues = status.starts > 1 and state.unsaved_s(job.job_id) < math.inf
    begins_s = status.since_s + (costs.restart_s if continues else 0.0)
    return max(state.now_s, begins_s) + left_s


def _runtime_s(
    job: Job, allocations: Sequence[Allocation], state: State, forecasts: Forecasts
) -> float:
    """Return the run time on the slowest of the devices, in proportion to their number."""
    kinds = {state.cluster.kind_of(one.device) for one in allocations}
    longest_s = max(forecasts.prediction(job, kind).runtime_s for kind in kinds)
    return longest_s * job.gpus / len(allocations)
