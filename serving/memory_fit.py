"""Do jobs fit in a device's memory together, and how surely."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import NormalDist
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[np.float64]]

_STANDARD = NormalDist()


def fit_probability(
    memory_bytes: Array, levels: Sequence[float], *, capacity_bytes: float
) -> float:
    """Probability that the members' peaks together are at most the device's memory.

    Each peak is taken as normal: mean at the median quantile, sigma from the widest interval,
    since it is the tail that runs out of memory. The errors of one model on one device go the
    same way more often than not (twice the same job: always), so sigmas are added, not their
    squares: the careful end. With it "0.9 sure to fit" and "the 90 % quantiles together fit" are
    the same statement.

    Parameters
    ----------
    memory_bytes : ndarray of shape (members, levels)
        Quantiles of each member's peak.
    levels : sequence of float
        Rising, 0.5 among them.
    """
    median = float(memory_bytes[:, list(levels).index(0.5)].sum())
    spread = _STANDARD.inv_cdf(levels[-1]) - _STANDARD.inv_cdf(levels[0])
    sigma = float((memory_bytes[:, -1] - memory_bytes[:, 0]).sum()) / spread
    if sigma == 0:
        return float(median <= capacity_bytes)
    return _STANDARD.cdf((capacity_bytes - median) / sigma)
