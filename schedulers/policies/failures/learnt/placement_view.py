"""Cluster and jobs as arrays, which a learned policy observes and changes during one decision."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress
from operator import not_

import numpy as np

from presage.schedulers.core.capacity.resource_requests import gang_size
from presage.schedulers.core.forecasts import Forecasts
from presage.schedulers.core.job import Checkpointing, Job
from presage.schedulers.core.job_status import JobStatus
from presage.schedulers.core.state import State
from presage.schedulers.policies.failures.completion import daly_interval_s, daly_intervals_s
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
    masks : sequence of Mask
        Sets of devices of the same kinds, each of shape (N,).
    mask_of : ndarray of int, shape (J,)
        Position of the set of devices that each job accepts.
    now_s, repair_s : float
        Present time, and the expected time to repair.
    others : sequence of Job
        Pending jobs without forecasts.
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
    masks: Sequence[Mask]
    mask_of: Int64s
    now_s: float
    repair_s: float
    others: Sequence[Job] = ()

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
    """Return the view of a state.

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
    queued, statuses, cluster = [*state.pending], state.running, state.cluster
    is_known = [one < math.inf for one in forecasts.runtimes_s(queued)]
    pending = [*compress(queued, is_known)]
    others = [] if len(pending) == len(queued) else [*compress(queued, map(not_, is_known))]
    jobs = [*pending, *map(state.job, statuses)]
    costs = [job.checkpointing for job in jobs]
    masks, mask_of = _masks(jobs, state)
    view = PlacementView(
        jobs=jobs,
        gpus=np.array(
            [gang_size(job, cluster) if job.min_gpus else job.gpus for job in jobs], np.int64
        ),
        runtime_s=np.array(forecasts.runtimes_s(jobs)),
        interval_s=np.array([one.interval_s for one in costs]),
        cost_s=np.array([one.cost_s for one in costs]),
        restart_s=np.array([one.restart_s for one in costs]),
        saved=state.progress_of([job.job_id for job in jobs]),
        is_running=np.arange(len(jobs)) >= len(pending),
        end_s=np.full(len(jobs), math.inf),
        rates_per_s=rates_per_s,
        holder=np.where(usable, IDLE, DOWN),
        safest=np.argsort(rates_per_s, kind="stable"),
        masks=masks,
        mask_of=mask_of,
        now_s=state.now_s,
        repair_s=repair_s,
        others=others,
    )
    if statuses:
        _add_running(view, list(statuses.values()), state, forecasts, sets_interval=sets_interval)
    return view


def _masks(jobs: Sequence[Job], state: State) -> tuple[list[Mask], Int64s]:
    """Return the sets of devices that jobs accept, and the position of the set of each job."""
    numbers: dict[tuple[str, ...], int] = {}
    mask_of = [numbers.setdefault(job.kinds, len(numbers)) for job in jobs]
    columns = state.cluster.columns
    masks = [
        columns.has_kind(kinds) if kinds else np.ones(len(columns.node), bool) for kinds in numbers
    ]
    return masks, np.array(mask_of, np.int64)


def _add_running(
    view: PlacementView,
    statuses: Sequence[JobStatus],
    state: State,
    forecasts: Forecasts,
    *,
    sets_interval: bool,
) -> None:
    """Enter the devices of running jobs, and when these are predicted to release them.

    A job that continues from a checkpoint first restarts; a job that begins again does not.
    """
    first = len(view.jobs) - len(statuses)
    jobs = view.jobs[first:]
    devices = np.array([one.device for status in statuses for one in status.allocations])
    owner = np.repeat(np.arange(len(jobs)), [len(status.allocations) for status in statuses])
    view.holder[devices] = first + owner
    interval_s = view.interval_s[first:]
    if sets_interval:
        rates = np.bincount(owner, view.rates_per_s[devices], len(jobs))
        best_s = daly_intervals_s(rates, view.cost_s[first:])
        interval_s = np.where(interval_s < math.inf, best_s, interval_s)
    continues = [
        status.starts > 1 and state.unsaved_s(job.job_id) < math.inf
        for job, status in zip(jobs, statuses, strict=True)
    ]
    runtime_s = view.runtime_s[first:]  # on the fastest kind
    if len(state.cluster.columns.kinds) > 1:
        runtime_s = _runtimes_s(jobs, statuses, state, forecasts)
    members = np.array([len(status.allocations) for status in statuses])
    runtime_s = runtime_s * np.array([job.gpus for job in jobs]) / members
    left_s = (1.0 - view.saved[first:]) * runtime_s * (1 + view.cost_s[first:] / interval_s)
    since_s = np.array([status.since_s for status in statuses])
    begins_s = since_s + np.where(continues, view.restart_s[first:], 0.0)
    view.end_s[first:] = np.maximum(view.now_s, begins_s) + left_s


def used_interval_s(costs: Checkpointing, rate_per_s: float, *, sets_interval: bool) -> float:
    """Return the time between checkpoints of a job at a failure rate; infinite without any."""
    if not sets_interval or costs.interval_s == math.inf:
        return costs.interval_s
    return daly_interval_s(rate_per_s, costs.cost_s)


def _runtimes_s(
    jobs: Sequence[Job], statuses: Sequence[JobStatus], state: State, forecasts: Forecasts
) -> Array:
    """Return the run time of each job on the slowest kind of its devices."""
    kind_of = state.cluster.kind_of
    return np.array(
        [
            max(
                forecasts.prediction(job, kind).runtime_s
                for kind in {kind_of(one.device) for one in status.allocations}
            )
            for job, status in zip(jobs, statuses, strict=True)
        ]
    )
