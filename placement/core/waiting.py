"""Whether a job had better wait: its expected completion now, and on GPUs that jobs will release.

The releases of a state are computed once and serve all its jobs, so that a decision on 512 GPUs
takes a fraction of a millisecond.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from presage.placement.core.batches import Ints
from presage.placement.core.clusters import DOWN, Records
from presage.placement.core.compiling import compiled
from presage.schedulers.policies.failures.completion import expected_completion_s
from presage.system.arrays import Array

_expected_s = compiled(expected_completion_s)
_SHORT = 32  # number of keys up to which insertion is faster than a merge sort


class Releases(NamedTuple):
    """Failure rates of the safest GPUs that are free after the ends of running jobs.

    Attributes
    ----------
    delays_s : ndarray of shape (R,)
        Time until each end after which safer GPUs are free, and until the first end.
    rates_per_s : ndarray of shape (R, largest + 1)
        Total failure rate of the safest 0, 1, ... GPUs that are free then.
    """

    delays_s: Array
    rates_per_s: Array


@compiled
def find_releases(jobs: Records, gpus: Records, now_s: float, idle: Ints, largest: int) -> Releases:
    """Return the releases, for gangs of up to ``largest`` GPUs, if no GPU fails until then."""
    running = _running(jobs)
    if largest == 0:  # no gang fits
        running = running[:0]
    ends_s = np.empty(len(running))
    for i in range(len(running)):
        ends_s[i] = jobs[running[i]]["end_s"]
    position = np.empty(len(gpus), np.int64)  # of a GPU in the order of failure rates
    for i in range(len(gpus)):
        position[gpus[i]["safest"]] = i
    first, following = _gpus_of(jobs, gpus)
    best = np.full(largest, len(gpus))  # positions of the safest free GPUs, rising
    for g in idle:
        _insert(best, position[g])
    delays_s, rates = np.empty(len(running)), np.zeros((len(running), largest + 1))
    count = 0
    for i in sorting(ends_s):
        is_safer, g = count == 0, first[running[i]]
        while g >= 0:
            is_safer = _insert(best, position[g]) or is_safer
            g = following[g]
        if is_safer:
            delays_s[count] = ends_s[i] - now_s
            _sum_rates(gpus, best, rates[count])
            count += 1
    return Releases(delays_s[:count], rates[:count])


@compiled
def _running(jobs: Records) -> Ints:
    """Return the running jobs, by number."""
    found, count = np.empty(len(jobs), np.int64), 0
    for k in range(len(jobs)):
        if jobs[k]["end_s"] < math.inf:
            found[count] = k
            count += 1
    return found[:count]


@compiled
def _gpus_of(jobs: Records, gpus: Records) -> tuple[Ints, Ints]:
    """Return the first GPU of each job, and the GPU that follows each GPU; -1 for none."""
    first, following = np.full(len(jobs), -1), np.full(len(gpus), -1)
    for g in range(len(gpus)):
        k = gpus[g]["holder"]
        if k >= 0:
            following[g] = first[k]
            first[k] = g
    return first, following


@compiled
def _insert(best: Ints, position: int) -> bool:
    """Insert a position into the lowest ones, and drop the last; return whether it is lower."""
    i = len(best) - 1
    if i < 0 or position >= best[i]:
        return False
    while i > 0 and best[i - 1] > position:
        best[i] = best[i - 1]
        i -= 1
    best[i] = position
    return True


@compiled
def _sum_rates(gpus: Records, best: Ints, totals: Array) -> None:
    """Write the total failure rates of the first 0, 1, ... positions."""
    total = 0.0
    for n in range(len(best)):
        if best[n] < len(gpus):
            total += gpus[gpus[best[n]]["safest"]]["hazard_per_s"]
        totals[n + 1] = total


@compiled
def waits(
    job: Any, gpus: Records, repair_s: float, patience: float, idle: Ints, releases: Releases
) -> bool:
    """Return whether a job is expected to end earlier on GPUs that running jobs will release.

    The expected completion on the first idle GPUs is compared with that on the safest GPUs that are
    free after each release.
    """
    n = job["gpus"]
    limit_s = completion_s(job, total_rate(gpus, idle[:n]), repair_s) * patience
    for r in range(len(releases.delays_s)):
        delay_s = releases.delays_s[r]
        if delay_s >= limit_s:
            return False
        rate = releases.rates_per_s[r, n]
        is_new = r == 0 or rate != releases.rates_per_s[r - 1, n]  # else an earlier one is better
        if is_new and delay_s + completion_s(job, rate, repair_s) < limit_s:
            return True
    return False


@compiled
def wait_gain(job: Any, repair_s: float, here_s: float, releases: Releases) -> float:
    """Return the best expected completion if a job waits over that if it starts; 0.1 to 2."""
    n, best = job["gpus"], 2.0
    for r in range(len(releases.delays_s)):
        delay_s = releases.delays_s[r]
        if delay_s >= here_s * best:
            break
        rate = releases.rates_per_s[r, n]
        if r == 0 or rate != releases.rates_per_s[r - 1, n]:
            best = min(best, (delay_s + completion_s(job, rate, repair_s)) / here_s)
    return max(best, 0.1)


@compiled
def largest_fitting(jobs: Records, pending: Ints, idle: int) -> int:
    """Return the size of the largest pending gang that fits on a number of GPUs; 0 if none does."""
    largest = 0
    for j in pending:
        if jobs[j]["gpus"] <= idle:
            largest = max(largest, jobs[j]["gpus"])
    return largest


@compiled
def least_rates(gpus: Records, largest: int) -> Array:
    """Return the total failure rates of the safest 0, 1, ... GPUs that are up, or of all these."""
    totals = np.zeros(largest + 1)
    count = 0
    for i in range(len(gpus)):
        g = gpus[i]["safest"]
        if gpus[g]["holder"] != DOWN and count < largest:
            totals[count + 1] = totals[count] + gpus[g]["hazard_per_s"]
            count += 1
    totals[count + 1 :] = totals[count]
    return totals


@compiled
def completion_s(job: Any, rate_per_s: float, repair_s: float) -> float:
    """Return the expected time that a job still takes at the failure rate of its gang."""
    found: float = _expected_s(
        (1.0 - job["saved"]) * job["runtime_s"],
        rate_per_s,
        job["interval_s"],
        job["cost_s"],
        job["restart_s"],
        repair_s,
    )
    return found


@compiled
def total_rate(gpus: Records, chosen: Ints) -> float:
    """Return the failure rate of a gang on these GPUs."""
    total = 0.0
    for g in chosen:
        total += gpus[g]["hazard_per_s"]
    return total


@compiled
def sorting(keys: Array) -> Ints:
    """Return the positions of rising keys; equal keys keep their order."""
    if len(keys) > _SHORT:
        return np.argsort(keys, kind="mergesort")
    order = np.arange(len(keys))
    for i in range(1, len(keys)):  # by insertion: short, and nearly in order
        position = order[i]
        key, j = keys[position], i
        while j > 0 and keys[order[j - 1]] > key:
            order[j] = order[j - 1]
            j -= 1
        order[j] = position
    return order
