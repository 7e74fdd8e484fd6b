"""Interval widening by what is new in a request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from presage.models.calibration.margins import NOVELTIES, combine_widenings
from presage.system.arrays import Array, Ints


def widening_factors(margins: Mapping[float, float], levels: Sequence[float]) -> Array:
    """Return the factor of each quantile, shape (levels,): below 1 below the median.

    ``margins`` are by lower level and at least 0, in the logarithm of a scale or in log-odds.
    """
    factors = np.ones(len(levels))
    for level, margin in margins.items():
        low = levels.index(level)
        factors[low], factors[len(levels) - 1 - low] = np.exp(-margin), np.exp(margin)
    return factors


def widening_table(
    margins: Mapping[str, Mapping[str, Mapping[float, float]]],
    device_class: str,
    levels: Sequence[float],
) -> Array:
    """Return the factors of each quantile by novelty code, shape (codes, levels).

    ``margins`` are by novelty, device class and lower level. Codes are those of
    :mod:`presage.serving.predictor.domain_check` that widen intervals.
    """
    rows = []
    for code in range(1 << len(NOVELTIES)):
        names = [name for bit, name in enumerate(NOVELTIES) if code >> bit & 1]
        new = [margins.get(name, {}).get(device_class, {}) for name in names]
        rows.append(widening_factors(combine_widenings(new), levels))
    return np.array(rows)


def narrowed_factors(tables: Array, novelty: Ints, left: Sequence[Array]) -> Array:
    """Return factors of each quantile where a part of what is new has become known.

    Parameters
    ----------
    tables : ndarray of shape (rows, codes, levels)
        Factors by novelty code, as :func:`widening_table` returns them.
    novelty : ndarray of int, shape (rows,)
        Codes.
    left : sequence of ndarray of shape (rows,)
        By novelty, the part of its margin that remains, 0 to 1.

    Returns
    -------
    ndarray of shape (rows, levels)
        Of several novelties, the largest remaining margin counts.
    """
    margins = np.zeros((len(novelty), tables.shape[2]))
    for bit, part in enumerate(left):
        own = np.log(tables[:, 1 << bit]) * (part * (novelty >> bit & 1))[:, None]
        margins = np.where(np.abs(own) > np.abs(margins), own, margins)
    return np.asarray(np.exp(margins))


def widen(quantiles: Array, factors: Array, middle: int, *, odds: bool) -> Array:
    """Return intervals with their ends moved away from the median, in the space of training.

    Factors of 1 change nothing, not even by rounding.

    Parameters
    ----------
    quantiles : ndarray of shape (rows, levels)
        Quantiles in their unit.
    factors : ndarray of shape (rows, levels)
        Factors from :func:`widening_factors`.
    middle : int
        Position of the median.
    odds : bool
        Whether the quantity is a fraction, whose factors apply to odds.
    """
    out = quantiles * factors
    if odds:
        out /= 1 + (out - quantiles)
    # An outer end may move less than an inner one; keep it outside.
    out[:, middle::-1] = np.minimum.accumulate(out[:, middle::-1], axis=1)
    out[:, middle:] = np.maximum.accumulate(out[:, middle:], axis=1)
    return out
