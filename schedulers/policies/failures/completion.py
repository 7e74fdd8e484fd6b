"""Expected completion time of a job under failures, and the best checkpoint interval."""

from __future__ import annotations

import math

import numpy as np

from presage.system.arrays import Array

MOST_EXPONENT = 50.0  # above it a job practically never finishes
LEAST_INTERVAL_S = 1.0
LEAST_RATE_PER_S = 1e-300  # a lower rate has no finite inverse, and counts as 0


def expected_completion_s(
    work_s: float,
    rate_per_s: float,
    interval_s: float,
    cost_s: float,
    restart_s: float,
    repair_s: float,
) -> float:
    """Return the expected time until a job has done its remaining work.

    Failures are a Poisson process; after each one the job falls back to its last checkpoint.

    Parameters
    ----------
    work_s : float
        Remaining run time without failures and checkpoints.
    rate_per_s : float
        Failure rate of the gang: the sum of its devices' rates.
    interval_s, cost_s, restart_s : float
        Checkpoints, infinite for none, with the time to write one and to restart from it.
    repair_s : float
        Time from a failure until the job has devices again.

    References
    ----------
    Daly: A higher order estimate of the optimum checkpoint interval, FGCS 2006, eq. 13.
    """
    if interval_s == math.inf:
        if rate_per_s < LEAST_RATE_PER_S:
            return work_s
        exponent = min(MOST_EXPONENT, rate_per_s * work_s)
        return math.expm1(exponent) * (1 / rate_per_s + repair_s)
    segment_s = min(interval_s, work_s)
    if segment_s <= 0:
        return 0.0
    if rate_per_s < LEAST_RATE_PER_S:
        return work_s * (1 + cost_s / interval_s)
    exponent = min(MOST_EXPONENT, rate_per_s * (segment_s + cost_s))
    segment = math.expm1(exponent) * (1 / rate_per_s + restart_s + repair_s)
    return work_s / segment_s * segment


def expected_completions_s(
    work_s: Array,
    rates_per_s: Array,
    interval_s: Array,
    cost_s: Array,
    restart_s: Array,
    repair_s: float,
) -> Array:
    """Return :func:`expected_completion_s` of several jobs at several failure rates.

    Parameters
    ----------
    work_s, interval_s, cost_s, restart_s : ndarray of shape (J,)
    rates_per_s : ndarray of shape (J, R)

    Returns
    -------
    ndarray of shape (J, R)
    """
    is_saved = interval_s < math.inf  # without checkpoints the work is one segment without costs
    cost_s = np.where(is_saved, cost_s, 0.0)
    segment_s = np.minimum(interval_s, work_s)
    segments = (work_s / np.where(segment_s > 0, segment_s, 1.0))[:, None]
    fails = rates_per_s >= LEAST_RATE_PER_S
    has_rates = bool(fails.all())
    rates = rates_per_s if has_rates else np.where(fails, rates_per_s, 1.0)
    exponent = np.minimum(MOST_EXPONENT, rates * (segment_s + cost_s)[:, None])
    found: Array = segments * (
        np.expm1(exponent)
        * (1 / rates + np.where(is_saved, restart_s, 0.0)[:, None] + repair_s)
    )  # fmt: skip
    if not has_rates:
        found = np.where(fails, found, (work_s * (1 + cost_s / interval_s))[:, None])
    return found


def daly_interval_s(rate_per_s: float, cost_s: float) -> float:
    """Return the best time between checkpoints; infinite without failures, else at least 1 s.

    Parameters
    ----------
    rate_per_s : float
        Failure rate of the gang: the sum of its devices' rates.
    cost_s : float
        Time to write a checkpoint.

    References
    ----------
    Young: A first order approximation to the optimum checkpoint interval, CACM 1974; Daly 2006,
    eq. 37.
    """
    if rate_per_s < LEAST_RATE_PER_S:
        return math.inf
    mtbf_s = 1 / rate_per_s
    if cost_s >= 2 * mtbf_s:
        return max(LEAST_INTERVAL_S, mtbf_s)
    ratio = cost_s / (2 * mtbf_s)
    interval_s = math.sqrt(2 * cost_s * mtbf_s) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - cost_s
    return max(LEAST_INTERVAL_S, interval_s)


def daly_intervals_s(rates_per_s: Array, cost_s: Array) -> Array:
    """Return :func:`daly_interval_s` of several jobs, of shape (J,)."""
    fails = rates_per_s >= LEAST_RATE_PER_S
    mtbf_s = 1 / np.where(fails, rates_per_s, 1.0)
    ratio = cost_s / (2 * mtbf_s)
    best_s = np.sqrt(2 * cost_s * mtbf_s) * (1 + np.sqrt(ratio) / 3 + ratio / 9) - cost_s
    best_s = np.maximum(LEAST_INTERVAL_S, np.where(cost_s >= 2 * mtbf_s, mtbf_s, best_s))
    found: Array = np.where(fails, best_s, math.inf)
    return found
