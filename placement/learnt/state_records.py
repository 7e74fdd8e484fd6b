"""Scheduler state as records of the core, so that a policy observes both in the same way."""

from __future__ import annotations

import math

import numpy as np

from presage.placement.core.clusters import (
    DOWN,
    GPU,
    IDLE,
    JOB,
    PENDING,
    RUNNING,
    TOTAL,
    Clusters,
)
from presage.schedulers.core.forecasts import Forecasts
from presage.schedulers.core.job import Job
from presage.schedulers.core.state import State
from presage.schedulers.policies.backfill import end_s
from presage.schedulers.policies.failures.device_order import idle_mask
from presage.system.arrays import Array


def records_of(
    state: State, forecasts: Forecasts, rates_per_s: Array, repair_s: float
) -> tuple[Clusters, list[Job]]:
    """Return one cluster of the core with the pending and running jobs, and these jobs.

    Parameters
    ----------
    rates_per_s : ndarray of shape (devices,)
        Failure rates, finite and at least 0.
    repair_s : float
        Expected time from a failure until a job has devices again.
    """
    running = [state.job(job_id) for job_id in state.running]
    pending = [job for job in state.pending if forecasts.runtime_s(job) < math.inf]
    found = [*pending, *running]
    jobs, gpus, totals = np.zeros((1, len(found)), JOB), np.zeros((1, len(rates_per_s)), GPU), None
    jobs["end_s"] = jobs["done_s"] = math.inf
    for j, job in enumerate(found):
        record, costs = jobs[0, j], job.checkpointing
        record["gpus"], record["runtime_s"] = job.gpus, forecasts.runtime_s(job)
        record["interval_s"], record["cost_s"] = costs.interval_s, costs.cost_s
        record["restart_s"], record["submit_s"] = costs.restart_s, job.submit_s
        record["saved"] = state.progress(job.job_id)
        record["phase"] = PENDING
    idle = idle_mask(state.cluster, state.capacity())
    gpus["hazard_per_s"], gpus["holder"] = rates_per_s, np.where(idle, IDLE, DOWN)
    gpus["safest"] = np.argsort(rates_per_s, kind="stable")
    for j, job in enumerate(running, start=len(pending)):
        status = state.status(job.job_id)
        jobs[0, j]["phase"] = RUNNING
        jobs[0, j]["end_s"] = end_s(job, status.allocations, state, forecasts)
        gpus["holder"][0, [one.device for one in status.allocations]] = j
    totals = np.zeros(1, TOTAL)
    totals["now_s"], totals["repair_s"] = state.now_s, repair_s
    never = np.full((1, len(rates_per_s), 1), math.inf)
    return Clusters(jobs, gpus, totals, never, never), found
