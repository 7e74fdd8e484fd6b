"""Probability that co-located jobs fit in a device's memory."""

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
    """Return the probability that the sum of the members' peaks fits in the device's memory.

    Quantiles are summed level by level, which assumes fully correlated errors. Errors of one model
    on one device mostly have the same sign (always, for two instances of one job), and full
    correlation is the conservative case. So "fits with probability 0.9" and "the 90 % quantiles
    fit together" are the same statement.

    Between two levels the sum is log-normal. Above the highest level its logarithm is extrapolated
    with the steepest slope from any lower level, because memory is skewed towards this tail. Below
    the lowest level it is extrapolated with the flattest slope to any higher level, which is again
    conservative. Without any spread the result is 0 or 1.

    Parameters
    ----------
    memory_bytes : ndarray of shape (members, levels)
        Quantiles of each member's peak, not decreasing along a row.
    levels : sequence of float
        Quantile levels, increasing.
    capacity_bytes : float
        Memory of the device.
    """
    z = np.array([_STANDARD.inv_cdf(level) for level in levels])
    total, capacity = _log_bytes(memory_bytes.sum(axis=0)), float(_log_bytes(capacity_bytes))
    within = int(np.searchsorted(total, capacity, side="right"))  # levels whose total fits
    last = len(levels) - 1
    if within == 0:
        slope = min((_slope(total, z, 0, i) for i in range(1, last + 1)), default=0.0)
        return min(levels[0], _extrapolate(z[0], capacity - total[0], slope))
    if within > last:
        slope = max((_slope(total, z, i, last) for i in range(last)), default=0.0)
        return max(levels[last], _extrapolate(z[last], capacity - total[last], slope))
    slope = _slope(total, z, within - 1, within)
    probability = _extrapolate(z[within - 1], capacity - total[within - 1], slope)
    # cdf(inv_cdf(0.9)) may differ slightly from 0.9, which callers compare with.
    return min(max(probability, levels[within - 1]), levels[within])


def _log_bytes(value: Any) -> Any:
    return np.log(np.maximum(value, 1.0))  # at least a byte


def _slope(total: Array, z: Array, a: int, b: int) -> float:
    """Return the slope of the logarithm per standard deviation between two levels."""
    return float((total[b] - total[a]) / (z[b] - z[a]))


def _extrapolate(z: float, distance: float, slope: float) -> float:
    """Return the probability at a logarithmic ``distance`` from the point with z-score ``z``."""
    if slope == 0:
        return float(distance >= 0)
    return _STANDARD.cdf(z + distance / slope)
