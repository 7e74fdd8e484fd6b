"""Do jobs fit in a device's memory together, and how surely."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import NormalDist
from typing import Any

import numpy as np

from presage.system.arrays import Array

_STANDARD = NormalDist()


def fit_probability(
    memory_bytes: Array, levels: Sequence[float], *, capacity_bytes: float
) -> float:
    """Probability that the members' peaks together are at most the device's memory.

    Quantiles are summed level by level, as if all members were light or heavy at once: the errors
    of one model on one device go the same way more often than not (twice the same job: always),
    and of all ways in which they may go together this is the careful one. So "0.9 sure to fit"
    and "the 90 % quantiles together fit" are the same statement.

    Between two levels the sum is taken as log-normal. Above the highest its logarithm goes on as
    the steepest line to there from any lower level: memory is skewed towards this tail, and it is
    the one that runs out. Below the lowest it goes on as the flattest line to any higher level,
    for the same care. Without any spread the answer is 0 or 1.

    Parameters
    ----------
    memory_bytes : ndarray of shape (members, levels)
        Quantiles of each member's peak, not decreasing.
    levels : sequence of float
        Rising.
    """
    z = np.array([_STANDARD.inv_cdf(level) for level in levels])
    total, capacity = _log_bytes(memory_bytes.sum(axis=0)), float(_log_bytes(capacity_bytes))
    within = int(np.searchsorted(total, capacity, side="right"))  # levels whose total fits
    last = len(levels) - 1
    if within == 0:
        slope = min((_slope(total, z, 0, i) for i in range(1, last + 1)), default=0.0)
        return min(levels[0], _beyond(z[0], capacity - total[0], slope))
    if within > last:
        slope = max((_slope(total, z, i, last) for i in range(last)), default=0.0)
        return max(levels[last], _beyond(z[last], capacity - total[last], slope))
    slope = _slope(total, z, within - 1, within)
    answer = _beyond(z[within - 1], capacity - total[within - 1], slope)
    # cdf(inv_cdf(0.9)) may be a hair off 0.9, which is what a caller compares with.
    return min(max(answer, levels[within - 1]), levels[within])


def _log_bytes(value: Any) -> Any:
    return np.log(np.maximum(value, 1.0))  # less than a byte is none


def _slope(total: Array, z: Array, a: int, b: int) -> float:
    """Growth of the logarithm per standard deviation, from one level to another."""
    return float((total[b] - total[a]) / (z[b] - z[a]))


def _beyond(z: float, distance: float, slope: float) -> float:
    """Probability at a ``distance``, in the logarithm, from where the deviation is ``z``."""
    if slope == 0:
        return float(distance >= 0)
    return _STANDARD.cdf(z + distance / slope)
