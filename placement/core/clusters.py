"""State of the simulated clusters, and its event loop: one move from event to event.

The rules are those of :mod:`presage.schedulers.simulator.simulation` for exclusive devices, one GPU
a node: finished jobs first, then failures, then repairs, then arrivals, then one decision. A job
whose GPU fails falls back to its last checkpoint and is pending again.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from presage.errors import ConfigError
from presage.placement.core.batches import Batches, Ints
from presage.placement.core.compiling import compiled
from presage.system.arrays import Array

FUTURE, PENDING, RUNNING, DONE = 0, 1, 2, 3  # phases of a job
IDLE, DOWN = -1, -2  # holders of a GPU that no job has

# Records, because numba passes few arrays faster than many.
JOB = np.dtype(
    [
        ("gpus", np.int64),
        ("runtime_s", np.float64),  # without failures and checkpoints
        ("submit_s", np.float64),
        ("interval_s", np.float64),  # between checkpoints, infinite for none
        ("cost_s", np.float64),
        ("restart_s", np.float64),
        ("phase", np.int64),
        ("saved", np.float64),  # fraction that the last checkpoint holds
        ("used_interval_s", np.float64),  # between checkpoints since the last start
        ("pace_s", np.float64),  # run time of the whole job with these checkpoints
        ("started_s", np.float64),
        ("since_s", np.float64),  # time from which a running job progresses
        ("end_s", np.float64),  # of a running job, without failures; infinite for others
        ("done_s", np.float64),  # infinite until then
        ("starts", np.int64),
    ]
)
GPU = np.dtype(
    [
        ("hazard_per_s", np.float64),  # failure rate as policies know it
        ("holder", np.int64),  # the job on it, IDLE or DOWN
        ("outage", np.int64),  # number of the present or next outage
        (
            "change_s",
            np.float64,
        ),  # next failure, or the repair of a GPU that is down
        ("safest", np.int64),  # in position i: the GPU with the i-th lowest rate
    ]
)
TOTAL = np.dtype(
    [
        ("now_s", np.float64),
        ("left", np.int64),  # jobs that are not done
        ("arrived", np.int64),  # jobs that are submitted
        ("lost_s", np.float64),  # GPU-seconds of lost work and of restarts
        ("held_s", np.float64),  # GPU-seconds that jobs held
        ("repair_s", np.float64),  # mean time to repair as policies know it
        ("random", np.uint64),
    ]
)
Records = NDArray[Any]


class Clusters(NamedTuple):
    """State of B clusters with their batches.

    Attributes
    ----------
    jobs : ndarray of JOB, shape (B, J)
    gpus : ndarray of GPU, shape (B, N)
    totals : ndarray of TOTAL, shape (B,)
    fails_s, repaired_s : ndarray of shape (B, N, K)
        Start and end of the outages of each GPU.
    """

    jobs: Records
    gpus: Records
    totals: Records
    fails_s: Array
    repaired_s: Array


def new_clusters(batches: Batches, *, seed: int = 0) -> Clusters:
    """Return clusters before their first event.

    Raises
    ------
    ConfigError
        A job needs more GPUs than its cluster has, or a time or a rate is NaN or negative.
    """
    _check(batches)
    b, n = batches.hazard_per_s.shape
    jobs = np.zeros(batches.gpus.shape, JOB)
    for field in ("gpus", "runtime_s", "submit_s", "interval_s", "cost_s", "restart_s"):
        jobs[field] = getattr(batches, field)
    jobs["used_interval_s"] = batches.interval_s
    for field in ("pace_s", "end_s", "done_s"):
        jobs[field] = math.inf
    gpus = np.zeros((b, n), GPU)
    gpus["hazard_per_s"], gpus["holder"] = batches.hazard_per_s, IDLE
    gpus["change_s"] = batches.fails_s[:, :, 0]
    gpus["safest"] = np.argsort(batches.hazard_per_s, axis=1, kind="stable")
    totals = np.zeros(b, TOTAL)
    totals["left"], totals["repair_s"] = len(jobs[0]), batches.repair_s
    totals["random"] = np.random.default_rng(seed).integers(1, 2**63, b)
    return Clusters(jobs, gpus, totals, batches.fails_s, batches.repaired_s)


def _check(batches: Batches) -> None:
    _, n = batches.hazard_per_s.shape
    if batches.gpus.max() > n or batches.gpus.min() < 1:
        raise ConfigError(
            f"jobs of {batches.gpus.min()} to {batches.gpus.max()} GPUs; a job needs at least one "
            f"and at most the {n} of the cluster"
        )
    for field in ("runtime_s", "submit_s", "cost_s", "restart_s", "hazard_per_s", "repair_s"):
        values = getattr(batches, field)
        if not (np.isfinite(values).all() and (values >= 0).all()):
            raise ConfigError(f"{field} has values that are not finite numbers >= 0")
    if not (batches.interval_s > 0).all():
        raise ConfigError("interval_s must be > 0; infinite for jobs without checkpoints")
    if (np.diff(batches.submit_s, axis=1) < 0).any():
        raise ConfigError("submit_s must not fall within a batch; sort the jobs by submission")


def makespans_s(clusters: Clusters) -> Array:
    """Return the time from the first submission to the last end; infinite if a job never ends."""
    found: Array = clusters.jobs["done_s"].max(axis=1) - clusters.jobs["submit_s"].min(axis=1)
    return found


def average_jcts_s(clusters: Clusters) -> Array:
    """Return the mean time from the submission of a job to its end."""
    found: Array = (clusters.jobs["done_s"] - clusters.jobs["submit_s"]).mean(axis=1)
    return found


def training_time_ratios(clusters: Clusters) -> Array:
    """Return the failure-free GPU-time of the jobs over the GPU-time that they held."""
    work_s = (clusters.jobs["gpus"] * clusters.jobs["runtime_s"]).sum(axis=1)
    found: Array = work_s / clusters.totals["held_s"]
    return found


@compiled
def advance(clusters: Clusters, b: int) -> bool:
    """Move a cluster to its next event and apply it; return whether there was one."""
    jobs, gpus, total = clusters.jobs[b], clusters.gpus[b], clusters.totals[b]
    now_s = _next_event_s(jobs, gpus, total["arrived"])
    if now_s == math.inf or total["left"] == 0:
        return False
    total["now_s"] = now_s
    for j in range(len(jobs)):
        if jobs[j]["end_s"] == now_s:
            _release(jobs, gpus, total, j)
            jobs[j]["phase"] = DONE
            jobs[j]["saved"] = 1.0
            jobs[j]["done_s"] = now_s
            total["left"] -= 1
    for g in range(len(gpus)):
        if gpus[g]["change_s"] == now_s and gpus[g]["holder"] != DOWN:
            if gpus[g]["holder"] != IDLE:
                _roll_back(jobs, gpus, total, gpus[g]["holder"])
            gpus[g]["holder"] = DOWN
            gpus[g]["change_s"] = clusters.repaired_s[b, g, gpus[g]["outage"]]
    for g in range(len(gpus)):
        if gpus[g]["change_s"] == now_s and gpus[g]["holder"] == DOWN:
            gpus[g]["holder"] = IDLE
            gpus[g]["outage"] += 1
            gpus[g]["change_s"] = clusters.fails_s[b, g, gpus[g]["outage"]]
    while total["arrived"] < len(jobs) and jobs[total["arrived"]]["submit_s"] == now_s:
        jobs[total["arrived"]]["phase"] = PENDING
        total["arrived"] += 1
    return True


@compiled
def _next_event_s(jobs: Records, gpus: Records, arrived: int) -> float:
    """Return the time of a cluster's next event; infinite if there is none."""
    now_s = math.inf
    if arrived < len(jobs):
        now_s = jobs[arrived]["submit_s"]
    for j in range(len(jobs)):
        now_s = min(now_s, jobs[j]["end_s"])
    for g in range(len(gpus)):
        now_s = min(now_s, gpus[g]["change_s"])
    return now_s


@compiled
def start(clusters: Clusters, b: int, j: int, chosen: Ints, interval_s: float) -> None:
    """Start a pending job on idle GPUs with a checkpoint interval."""
    gpus, job, now_s = clusters.gpus[b], clusters.jobs[b, j], clusters.totals[b]["now_s"]
    for g in chosen:
        gpus[g]["holder"] = j
    saved = job["saved"]
    since_s = now_s + (job["restart_s"] if saved > 0 else 0.0)
    pace_s = job["runtime_s"]
    if interval_s < math.inf:
        pace_s *= 1 + job["cost_s"] / interval_s
    job["phase"] = RUNNING
    job["used_interval_s"] = interval_s
    job["pace_s"] = pace_s
    job["started_s"] = now_s
    job["since_s"] = since_s
    job["end_s"] = max(since_s + (1.0 - saved) * pace_s, now_s)
    job["starts"] += 1


@compiled
def _release(jobs: Records, gpus: Records, total: Any, j: int) -> None:
    job = jobs[j]
    held_s = total["now_s"] - job["started_s"]
    total["held_s"] += job["gpus"] * held_s
    total["lost_s"] += job["gpus"] * min(held_s, job["since_s"] - job["started_s"])
    job["end_s"] = math.inf
    for g in range(len(gpus)):
        if gpus[g]["holder"] == j:
            gpus[g]["holder"] = IDLE


@compiled
def _roll_back(jobs: Records, gpus: Records, total: Any, j: int) -> None:
    """Return a job to its last checkpoint and to the queue."""
    _release(jobs, gpus, total, j)
    job = jobs[j]
    job["phase"] = PENDING
    ran_s = total["now_s"] - job["since_s"]
    if ran_s <= 0:
        return
    unsaved_s = ran_s
    cycle_s = job["used_interval_s"] + job["cost_s"]
    if ran_s >= cycle_s:
        unsaved_s = ran_s % cycle_s
        progress = min(1.0, job["saved"] + ran_s / job["pace_s"])
        job["saved"] = progress - unsaved_s / job["pace_s"]
    total["lost_s"] += job["gpus"] * unsaved_s
