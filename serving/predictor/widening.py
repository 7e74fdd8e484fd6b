"""Wider intervals for jobs that a release has not learnt from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from presage.features.arrays import Array


def widening_factors(margins: Mapping[float, float], levels: Sequence[float]) -> Array:
    """What each level's quantile is moved by, shape (levels,): below 1 below the median.

    ``margins`` are by lower level, at least 0: of the logarithm of a scale, or of log-odds.
    """
    factors = np.ones(len(levels))
    for level, margin in margins.items():
        low = levels.index(level)
        factors[low], factors[len(levels) - 1 - low] = np.exp(-margin), np.exp(margin)
    return factors


def widen(quantiles: Array, factors: Array, middle: int, *, odds: bool) -> Array:
    """Move the ends of intervals further from the median, in the space where they were learnt.

    Factors of 1 move nothing, not even by a rounding.

    Parameters
    ----------
    quantiles : ndarray of shape (rows, levels)
        In their unit.
    factors : ndarray of shape (rows, levels)
        Of :func:`widening_factors`.
    middle : int
        Position of the median.
    odds : bool
        Of a fraction: factors are of odds.
    """
    out = quantiles * factors
    if odds:
        out /= 1 + (out - quantiles)
    # An outer end may be moved by less than an inner one, and stays outside all the same.
    out[:, middle::-1] = np.minimum.accumulate(out[:, middle::-1], axis=1)
    out[:, middle:] = np.maximum.accumulate(out[:, middle:], axis=1)
    return out
