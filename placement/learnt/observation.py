"""What a learnt policy observes of a cluster, and its actions: start a pending job, or wait.

All values are ratios, so that one network serves clusters of any size and jobs of any length. The
scheduler's policy computes the same values in numpy
(:mod:`presage.schedulers.policies.failures.learnt.placement_features`).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from presage.placement.core.batches import Ints
from presage.placement.core.clusters import (
    DOWN,
    IDLE,
    PENDING,
    RUNNING,
    Clusters,
    Records,
    advance,
)
from presage.placement.core.compiling import compiled
from presage.placement.core.rules import (
    Rule,
    idle_gpus,
    pending_jobs,
    place,
    releases_for,
    remaining_s,
)
from presage.placement.core.waiting import (
    completion_s,
    find_releases,
    largest_fitting,
    least_rates,
    wait_gain,
    waits,
)
from presage.schedulers.policies.failures.learnt.placement_features import (
    LEAST_S,
)
from presage.system.arrays import Array

GPU_FEATURES = ("log_rate", "risk", "safer", "job_gpus")
Bits = NDArray[np.bool_]


@compiled
def next_decision(clusters: Clusters, rule: Rule, b: int) -> bool:
    """Move a cluster to its next decision: a pending job fits on idle GPUs; False at the end."""
    while not can_start(clusters, b):
        if not advance(clusters, b):
            return False
    return True


@compiled
def can_start(clusters: Clusters, b: int) -> bool:
    """Return whether any pending job fits on the idle GPUs."""
    jobs, gpus, idle = clusters.jobs[b], clusters.gpus[b], 0
    for g in range(len(gpus)):
        idle += 1 if gpus[g]["holder"] == IDLE else 0
    for j in range(len(jobs)):  # noqa: SIM110 - numba compiles no generator
        if jobs[j]["phase"] == PENDING and jobs[j]["gpus"] <= idle:
            return True
    return False


@compiled
def rule_action(clusters: Clusters, rule: Rule, b: int) -> int:
    """Return the job that a rule starts next, or the number of jobs if it waits."""
    jobs, gpus, repair_s = clusters.jobs[b], clusters.gpus[b], clusters.totals[b]["repair_s"]
    idle = idle_gpus(clusters, rule, b, False)
    pending = pending_jobs(jobs, rule)
    releases = releases_for(clusters, rule, b, pending, idle)
    for j in pending:
        if jobs[j]["gpus"] <= len(idle) and not waits(
            jobs[j], gpus, repair_s, rule.patience, idle, releases
        ):
            return int(j)
    return len(jobs)


@compiled
def act(clusters: Clusters, rule: Rule, b: int, action: int) -> bool:
    """Start a job on the GPUs that the rule prefers, or wait for the next event.

    Returns whether there is a next decision, to which the cluster is moved.
    """
    jobs = clusters.jobs[b]
    if action < len(jobs):
        idle = idle_gpus(clusters, rule, b, False)
        place(clusters, rule, b, action, idle[: jobs[action]["gpus"]])
    elif not advance(clusters, b):
        return False
    return next_decision(clusters, rule, b)


@compiled
def observe(  # noqa: PLR0915 - numba passes few values between functions
    clusters: Clusters, rule: Rule, b: int, job_values: Array, cluster_values: Array, allowed: Bits
) -> None:
    """Write the observation of a cluster.

    Parameters
    ----------
    job_values : ndarray of shape (J, len(JOB_FEATURES))
        Features of the jobs that can start; 0 for others.
    cluster_values : ndarray of shape (len(CLUSTER_FEATURES),)
        Features of the cluster.
    allowed : ndarray of bool, shape (J + 1,)
        Which jobs can start; at last, whether the policy may wait: while a job runs.
    """
    jobs, gpus, total = clusters.jobs[b], clusters.gpus[b], clusters.totals[b]
    n_gpus = len(gpus)
    job_values[:] = 0.0
    allowed[:] = False
    idle = idle_gpus(clusters, rule, b, False)
    area_s, longest_s, pending, running, next_s = 0.0, 1.0, 0, 0, math.inf
    for j in range(len(jobs)):
        if jobs[j]["phase"] == PENDING:
            left_s = remaining_s(jobs, j)
            pending += 1
        elif jobs[j]["phase"] == RUNNING:
            left_s = jobs[j]["end_s"] - total["now_s"]
            next_s = min(next_s, left_s)
            running += 1
        else:
            continue
        area_s += jobs[j]["gpus"] * left_s / n_gpus
        longest_s = max(longest_s, left_s)
    scale_s = max(area_s, longest_s)
    down, rate = 0, 0.0
    for g in range(n_gpus):
        down += 1 if gpus[g]["holder"] == DOWN else 0
        rate += gpus[g]["hazard_per_s"] / n_gpus
    idle_rate = _rate(gpus, idle, len(idle)) / max(1, len(idle))
    cluster_values[0] = len(idle) / n_gpus
    cluster_values[1] = down / n_gpus
    cluster_values[2] = pending / (pending + running)
    cluster_values[3] = math.log(max(area_s, 1.0) / scale_s)
    cluster_values[4] = min(next_s, scale_s) / scale_s
    cluster_values[5] = math.log(rate * scale_s + 1e-6) / 5
    cluster_values[6] = math.log((idle_rate + 1e-12) / (rate + 1e-12)) / 5
    allowed[len(jobs)] = running > 0
    by_rule = pending_jobs(jobs, rule)
    largest = largest_fitting(jobs, by_rule, len(idle))
    releases = find_releases(jobs, gpus, total["now_s"], idle, largest)
    least_rates_per_s = least_rates(gpus, largest)
    for i in range(len(by_rule)):
        j = by_rule[i]
        n = jobs[j]["gpus"]
        if n > len(idle):
            continue
        allowed[j] = True
        here = _rate(gpus, idle, n)
        least = least_rates_per_s[n]
        left_s = max(1.0, remaining_s(jobs, j))
        here_s = max(LEAST_S, completion_s(jobs[j], here, total["repair_s"]))
        least_s = max(LEAST_S, completion_s(jobs[j], least, total["repair_s"]))
        job_values[j, 0] = math.log(left_s / scale_s)
        job_values[j, 1] = n / n_gpus
        job_values[j, 2] = math.log(n * left_s / (n_gpus * scale_s)) / 3
        job_values[j, 3] = min(3.0, here * min(left_s, jobs[j]["interval_s"]))
        job_values[j, 4] = min(3.0, math.log(here_s / left_s))
        job_values[j, 5] = min(3.0, math.log(least_s / left_s))
        job_values[j, 6] = math.log(wait_gain(jobs[j], total["repair_s"], here_s, releases))
        job_values[j, 7] = i / len(by_rule)
        job_values[j, 8] = 1.0 if jobs[j]["saved"] > 0 else 0.0
        job_values[j, 9] = (len(idle) - n) / n_gpus


@compiled
def _rate(gpus: Records, chosen: Ints, n: int) -> float:
    total = 0.0
    for i in range(n):
        total += gpus[chosen[i]]["hazard_per_s"]
    return total


@compiled
def observe_all(
    clusters: Clusters,
    rule: Rule,
    active: Ints,
    job_values: Array,
    cluster_values: Array,
    allowed: Bits,
    actions: Ints,
) -> None:
    """Write the observations of active clusters, and the actions of the rule there."""
    for i in range(len(active)):
        observe(clusters, rule, active[i], job_values[i], cluster_values[i], allowed[i])
        actions[i] = rule_action(clusters, rule, active[i])


@compiled
def act_all(clusters: Clusters, rule: Rule, active: Ints, actions: Ints, goes_on: Bits) -> None:
    """Act on active clusters, and write which have a next decision."""
    for i in range(len(active)):
        goes_on[i] = act(clusters, rule, active[i], actions[i])


@compiled
def begin_all(clusters: Clusters, rule: Rule, goes_on: Bits) -> None:
    """Move all clusters to their first decision."""
    for b in range(len(clusters.totals)):
        goes_on[b] = next_decision(clusters, rule, b)
