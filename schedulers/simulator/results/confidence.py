"""Confidence intervals of means of small samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist, mean, stdev

# 97.5 % quantile of Student's t distribution, by degrees of freedom from 1.
_T = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
    2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
    2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


def mean_with_margin(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and half of its 95 % confidence interval, infinite for a single value.

    Values are assumed to be independent and approximately normal (Student, 1908).
    """
    if len(values) < 2:
        return mean(values), math.inf
    freedom = len(values) - 1
    t = _T[freedom - 1] if freedom <= len(_T) else NormalDist().inv_cdf(0.975)
    return mean(values), t * stdev(values) / math.sqrt(len(values))
