"""Scheduler state as records of the core, so that a policy observes both in the same way."""

from __future__ import annotations

import math

import numpy as np

from presage.placement.core.clusters import GPU, JOB, PENDING, RUNNING, TOTAL, Clusters
from presage.schedulers.core.forecasts import Forecasts
from presage.schedulers.core.job import Job
from presage.schedulers.core.state import State
from presage.schedulers.policies.failures.device_order import idle_mask
from presage.schedulers.policies.failures.learnt.placement_view import PlacementView, read_view
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
    usable = idle_mask(state.cluster, state.capacity())
    view = read_view(state, forecasts, rates_per_s, repair_s, usable)
    return view_records(view), list(view.jobs)


def view_records(view: PlacementView) -> Clusters:
    """Return one cluster of the core that equals a view."""
    jobs, gpus = np.zeros((1, len(view.jobs)), JOB), np.zeros((1, len(view.holder)), GPU)
    for field in ("gpus", "runtime_s", "interval_s", "cost_s", "restart_s", "saved", "end_s"):
        jobs[field][0] = getattr(view, field)
    jobs["submit_s"] = [job.submit_s for job in view.jobs]
    jobs["done_s"] = math.inf
    jobs["phase"][0] = np.where(view.is_running, RUNNING, PENDING)
    gpus["hazard_per_s"], gpus["holder"], gpus["safest"] = (
        view.rates_per_s, view.holder, view.safest,
    )  # fmt: skip
    totals = np.zeros(1, TOTAL)
    totals["now_s"], totals["repair_s"] = view.now_s, view.repair_s
    never = np.full((1, len(view.holder), 1), math.inf)
    return Clusters(jobs, gpus, totals, never, never)
