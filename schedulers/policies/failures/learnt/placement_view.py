"""Cluster and jobs as arrays, which a learned policy observes and changes during one decision."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress
from operator import not_

import numpy as np

from presage.schedulers.core.forecasts import Forecasts
from presage.schedulers.core.job import Checkpointing, Job
from presage.schedulers.core.job_status import JobStatus
from presage.schedulers.core.state import State
from presage.schedulers.policies.failures.completion import daly_interval_s, daly_intervals_s
from presage.schedulers.policies.failures.device_order import Devices, Mask
from presage.schedulers.policies.failures.learnt.job_rows import JobColumns, JobRows
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
    known_rows: JobRows | None = None,
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
    known_rows : JobRows, optional
        Jobs of the last decision, which makes the next one faster; they are updated.
    """
    queued, statuses = [*state.pending], [*state.running.values()]
    is_known = [one < math.inf for one in forecasts.runtimes_s(queued)]
    pending = [*compress(queued, is_known)]
    others = [] if len(pending) == len(queued) else [*compress(queued, map(not_, is_known))]
    jobs = [*pending, *map(state.job, state.running)]
    columns, devices = (known_rows or JobRows()).read(jobs, statuses, state.cluster)
    masks, mask_of = _masks(pending, len(jobs), state)
    view = PlacementView(
        jobs=jobs,
        gpus=columns.gang.astype(np.int64),
        runtime_s=np.array(forecasts.runtimes_s(jobs)),
        interval_s=columns.interval_s,
        cost_s=columns.cost_s,
        restart_s=columns.restart_s,
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
        runtime_s = view.runtime_s[len(pending) :]  # on the fastest kind
        if len(state.cluster.columns.kinds) > 1:
            runtime_s = _runtimes_s(jobs[len(pending) :], statuses, state, forecasts)
        _add_running(view, columns, devices, runtime_s, state, sets_interval=sets_interval)
    return view


def _masks(pending: Sequence[Job], jobs: int, state: State) -> tuple[list[Mask], Int64s]:
    """Return the sets of devices that pending jobs accept, and the position of the set of each.

    Positions are of shape (jobs,), and 0 for running jobs.
    """
    kinds = [job.kinds for job in pending]
    numbers = {one: number for number, one in enumerate(dict.fromkeys(kinds))}
    mask_of, columns = np.zeros(jobs, np.int64), state.cluster.columns
    if len(numbers) > 1:
        mask_of[: len(pending)] = [numbers[one] for one in kinds]
    masks = [columns.has_kind(one) if one else np.ones(len(columns.node), bool) for one in numbers]
    return masks, mask_of


def _add_running(
    view: PlacementView,
    columns: JobColumns,
    devices: Sequence[Int64s],
    runtime_s: Array,
    state: State,
    *,
    sets_interval: bool,
) -> None:
    """Enter the devices of running jobs, and when these are predicted to release them.

    A job that continues from a checkpoint first restarts; a job that begins again does not.

    Parameters
    ----------
    devices : sequence of ndarray
        Devices of each running job.
    runtime_s : ndarray of shape (running jobs,)
        Predicted run time with as many devices as it requests.
    """
    first = len(view.jobs) - len(devices)
    running = JobColumns(*(one[first:] for one in columns))
    held = np.concatenate(devices)
    owner = np.repeat(np.arange(len(devices)), running.members.astype(np.int64))
    view.holder[held] = first + owner
    interval_s = running.interval_s
    if sets_interval:
        rates: Array = np.bincount(owner, view.rates_per_s[held], len(devices)).astype(float)
        best_s = daly_intervals_s(rates, running.cost_s)
        interval_s = np.where(interval_s < math.inf, best_s, interval_s)
    again, restart_s = np.flatnonzero(running.starts > 1), np.zeros(len(devices))
    for i in again.tolist():
        if state.unsaved_s(view.jobs[first + i].job_id) < math.inf:
            restart_s[i] = running.restart_s[i]
    runtime_s = runtime_s * running.gpus / running.members
    left_s = (1.0 - view.saved[first:]) * runtime_s * (1 + running.cost_s / interval_s)
    view.end_s[first:] = np.maximum(view.now_s, running.since_s + restart_s) + left_s


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
