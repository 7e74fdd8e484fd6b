"""Placement rules on the core: job order, choice of GPUs, waiting, checkpoint intervals.

A rule decides after every event, as a scheduling policy does. The same rules are policies of the
scheduler in :mod:`presage.schedulers.policies.failures`.
"""

from __future__ import annotations

import math
from typing import NamedTuple, get_type_hints

import numpy as np

from presage.placement.core.batches import Batches, Ints
from presage.placement.core.clusters import (
    IDLE,
    PENDING,
    RUNNING,
    Clusters,
    Records,
    advance,
    new_clusters,
    start,
)
from presage.placement.core.compiling import compiled
from presage.placement.core.waiting import (
    Releases,
    find_releases,
    largest_fitting,
    sorting,
    total_rate,
    waits,
)
from presage.schedulers.policies.failures.completion import daly_interval_s

_daly_s = compiled(daly_interval_s)

ARRIVAL, LARGEST = 0, 1  # orders
BY_NUMBER, RANDOM, LEAST_FAILING, MATCHED = 0, 1, 2, 3  # choices of GPUs


class Rule(NamedTuple):
    """Placement rule.

    Attributes
    ----------
    order : int
        ``ARRIVAL``, or ``LARGEST`` for falling ``t * n**exponent`` with the remaining run time t.
    exponent : float
        Weight of the number of GPUs n in the order.
    choice : int
        How GPUs are chosen: ``BY_NUMBER`` (first fit), ``RANDOM``, ``LEAST_FAILING``, or
        ``MATCHED``: of the GPUs of all jobs that start at once, the longest job gets the safest.
    skips : bool
        Whether jobs behind one that does not fit may start.
    patience : float
        A job waits if its expected completion is earlier, by this factor, on GPUs that running jobs
        will release. At 0 it never waits.
    avoided : float
        Largest fraction of the cluster's GPUs that is left idle for a high hazard; 0 for none.
    avoided_above : float
        A GPU is avoided if its hazard exceeds this multiple of the cluster's median.
    is_interval_chosen : bool
        Whether jobs with checkpoints get Daly's interval for their GPUs.
    """

    order: int = ARRIVAL
    exponent: float = 1.0
    choice: int = BY_NUMBER
    skips: bool = True
    patience: float = 0.0
    avoided: float = 0.0
    avoided_above: float = 4.0
    is_interval_chosen: bool = False


RULES = {
    "random": Rule(choice=RANDOM),
    "first-fit": Rule(),
    "least-failing": Rule(choice=LEAST_FAILING),
    "matched": Rule(choice=MATCHED),
}


def run_rule(batches: Batches, rule: Rule, *, seed: int = 0) -> Clusters:
    """Simulate all batches under a rule and return the clusters at the end."""
    clusters = new_clusters(batches, seed=seed)
    run_all(clusters, typed(rule))
    return clusters


def typed(rule: Rule) -> Rule:
    """Return the rule with values of the declared types: others would be compiled once more."""
    kinds = get_type_hints(Rule).values()
    return Rule(*[kind(value) for kind, value in zip(kinds, rule, strict=True)])


@compiled
def run_all(clusters: Clusters, rule: Rule) -> None:
    """Simulate each cluster to its end."""
    for b in range(len(clusters.totals)):
        while advance(clusters, b):
            decide(clusters, rule, b)


@compiled
def decide(clusters: Clusters, rule: Rule, b: int) -> None:
    """Start the jobs that a rule starts now."""
    if rule.avoided <= 0:
        _decide(clusters, rule, b, False)
    elif not _decide(clusters, rule, b, True):
        jobs = clusters.jobs[b]
        for j in range(len(jobs)):
            if jobs[j]["phase"] == RUNNING:
                return
        _decide(clusters, rule, b, False)  # no job waits for avoided GPUs for ever


@compiled
def _decide(clusters: Clusters, rule: Rule, b: int, avoids: bool) -> bool:
    """Start jobs on GPUs that are not avoided, or on all; return whether one was started."""
    jobs, gpus, repair_s = clusters.jobs[b], clusters.gpus[b], clusters.totals[b]["repair_s"]
    pending = pending_jobs(jobs, rule)
    if len(pending) == 0:
        return False
    idle = idle_gpus(clusters, rule, b, avoids)
    chosen, count, is_started = np.empty(len(pending), np.int64), 0, False
    releases = releases_for(clusters, rule, b, pending, idle)
    for j in pending:
        if len(idle) == 0:
            break
        n = jobs[j]["gpus"]
        if n > len(idle):
            if not rule.skips:
                break
        elif rule.patience <= 0 or not waits(
            jobs[j], gpus, repair_s, rule.patience, idle, releases
        ):
            is_started = True
            if rule.choice == MATCHED:
                chosen[count] = j
                count += 1
                idle = idle[: len(idle) - n]
            else:
                place(clusters, rule, b, j, idle[:n])
                idle = idle[n:]
            releases = releases_for(clusters, rule, b, pending, idle)
    if count:
        _match(clusters, rule, b, chosen[:count], avoids)
    return is_started


@compiled
def releases_for(clusters: Clusters, rule: Rule, b: int, pending: Ints, idle: Ints) -> Releases:
    """Return the releases by which pending jobs wait; none for a rule without waiting."""
    jobs, largest = clusters.jobs[b], 0
    if rule.patience > 0:
        largest = largest_fitting(jobs, pending, len(idle))
    return find_releases(jobs, clusters.gpus[b], clusters.totals[b]["now_s"], idle, largest)


@compiled
def _match(clusters: Clusters, rule: Rule, b: int, chosen: Ints, avoids: bool) -> None:
    """Place jobs that fit together: the one with the longest remaining run time goes first."""
    jobs, left_s = clusters.jobs[b], np.empty(len(chosen))
    for i in range(len(chosen)):
        left_s[i] = -remaining_s(jobs, chosen[i])
    idle = idle_gpus(clusters, rule, b, avoids)
    for i in sorting(left_s):
        n = jobs[chosen[i]]["gpus"]
        place(clusters, rule, b, chosen[i], idle[:n])
        idle = idle[n:]


@compiled
def place(clusters: Clusters, rule: Rule, b: int, j: int, chosen: Ints) -> None:
    """Start a job, with the rule's checkpoint interval."""
    job = clusters.jobs[b, j]
    interval_s = job["interval_s"]
    if rule.is_interval_chosen and interval_s < math.inf:
        interval_s = _daly_s(total_rate(clusters.gpus[b], chosen), job["cost_s"])
    start(clusters, b, j, chosen, interval_s)


@compiled
def idle_gpus(clusters: Clusters, rule: Rule, b: int, avoids: bool) -> Ints:
    """Return the idle GPUs that a rule may use, in its order of preference."""
    gpus = clusters.gpus[b]
    by_hazard = rule.choice in (LEAST_FAILING, MATCHED)
    idle, count = np.empty(len(gpus), np.int64), 0
    for i in range(len(gpus)):
        g = gpus[i]["safest"] if by_hazard else i
        if gpus[g]["holder"] == IDLE:
            idle[count] = g
            count += 1
    if rule.choice == RANDOM:
        key = np.empty(count)
        for i in range(count):
            key[i] = _draw(clusters.totals, b)
        return idle[:count][sorting(key)]
    if avoids:
        return _without_avoided(clusters.jobs[b], gpus, rule, idle[:count])
    return idle[:count]


@compiled
def _without_avoided(jobs: Records, gpus: Records, rule: Rule, idle: Ints) -> Ints:
    """Drop idle GPUs with a high hazard: the cluster's worst ones, at most a fraction of it.

    The limit also leaves enough GPUs for the largest pending job.
    """
    hazard, largest = gpus["hazard_per_s"], 0
    for j in range(len(jobs)):
        if jobs[j]["phase"] == PENDING:
            largest = max(largest, jobs[j]["gpus"])
    most = max(0, min(int(rule.avoided * len(gpus)), len(gpus) - largest))
    limit = rule.avoided_above * np.median(hazard)
    is_avoided = np.zeros(len(gpus), np.bool_)
    for i in range(len(gpus) - most, len(gpus)):
        g = gpus[i]["safest"]
        is_avoided[g] = hazard[g] > limit
    return idle[~is_avoided[idle]]


@compiled
def pending_jobs(jobs: Records, rule: Rule) -> Ints:
    """Return the pending jobs in the order of a rule."""
    pending, count = np.empty(len(jobs), np.int64), 0
    for j in range(len(jobs)):
        if jobs[j]["phase"] == PENDING:
            pending[count] = j
            count += 1
    pending = pending[:count]
    if rule.order == ARRIVAL or count < 2:
        return pending
    key = np.empty(count)
    for i in range(count):
        key[i] = -remaining_s(jobs, pending[i]) * float(jobs[pending[i]]["gpus"]) ** rule.exponent
    return pending[sorting(key)]


@compiled
def remaining_s(jobs: Records, j: int) -> float:
    """Return the run time that a job has left from its last checkpoint on."""
    left_s: float = (1.0 - jobs[j]["saved"]) * jobs[j]["runtime_s"]
    return left_s


@compiled
def _draw(totals: Records, b: int) -> float:
    """Return a random number within [0, 1) by xorshift64 (Marsaglia, 2003)."""
    x = totals[b]["random"]
    x ^= x << np.uint64(13)
    x ^= x >> np.uint64(7)
    x ^= x << np.uint64(17)
    totals[b]["random"] = x
    return float(x >> np.uint64(11)) / 9007199254740992.0
