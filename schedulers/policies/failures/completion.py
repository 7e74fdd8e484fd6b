"""Expected completion time of a job under failures, and the best checkpoint interval."""

from __future__ import annotations

import math

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
