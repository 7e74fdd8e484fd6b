"""Conformal calibration: intervals with the nominal coverage on unseen jobs."""

from __future__ import annotations

import math

import numpy as np

from presage.errors import TrainingError
from presage.system.arrays import Array, Ints


def conformal_margin(y: Array, low: Array, high: Array, *, coverage: float) -> float:
    """Return the margin that turns a quantile band into a prediction interval with ``coverage``.

    Parameters
    ----------
    y, low, high : ndarray of shape (rows,)
        Measured values of rows outside of training, and their predicted quantiles.
    coverage : float in (0, 1)
        Nominal marginal coverage. It holds if these rows and future jobs are exchangeable.

    Returns
    -------
    float
        Widening of both ends, in the unit of ``y``; negative if the band was too wide.

    Raises
    ------
    TrainingError
        There are too few rows for this coverage: 0.9 needs 9.

    References
    ----------
    Romano, Patterson, Candes: Conformalized Quantile Regression, NeurIPS 2019, Alg. 1.
    """
    rank = _score_rank(len(y), coverage)
    scores = np.maximum(low - y, y - high)
    return float(np.partition(scores, rank - 1)[rank - 1])


def calibrate(quantiles: Array, margins: dict[float, float], levels: tuple[float, ...]) -> Array:
    """Apply margins to quantiles of shape (rows, levels), keeping them in order.

    ``margins`` maps a lower level to the margin of the interval it begins: 0.1 to that of the
    80 % interval.
    """
    out = quantiles.copy()
    middle = levels.index(0.5)
    for level, margin in margins.items():
        low, high = levels.index(level), len(levels) - 1 - levels.index(level)
        out[:, low] -= margin
        out[:, high] += margin
    return _sort_outwards(out, middle)


def cv_plus(y: Array, left_out: Array, fold: Ints, new: Array, levels: tuple[float, ...]) -> Array:
    """Return calibrated quantiles of new rows, from networks trained without one fold each (CV+).

    The interval of a row on which the networks disagree is at least as wide as the disagreement.

    Parameters
    ----------
    y, left_out : ndarray of shape (rows,) and (rows, levels)
        Measured values, and their out-of-fold quantiles.
    fold : ndarray of int, shape (rows,)
        Fold of each row: a position in ``new``.
    new : ndarray of shape (folds, new rows, levels)
        Quantiles of the new rows, by the networks of each fold.
    levels : tuple of float

    Returns
    -------
    ndarray of shape (new rows, levels)
        The median is the mean over the folds.

    Raises
    ------
    TrainingError
        There are too few rows for a coverage.

    References
    ----------
    Barber, Candes, Ramdas, Tibshirani: Predictive inference with the jackknife+, Annals of
    Statistics 2021, section 3; with the scores of conformalized quantile regression.
    """
    out: Array = new.mean(axis=0)
    middle = levels.index(0.5)
    for low in range(middle):
        high = len(levels) - 1 - low
        rank = _score_rank(len(y), 1 - 2 * levels[low])
        score = np.maximum(left_out[:, low] - y, y - left_out[:, high])[:, None]
        for start in range(0, new.shape[1], _BLOCK):
            block = slice(start, start + _BLOCK)
            ends = new[fold, block]
            lower, upper = ends[..., low] - score, ends[..., high] + score
            out[block, low] = np.partition(lower, len(y) - rank, axis=0)[len(y) - rank]
            out[block, high] = np.partition(upper, rank - 1, axis=0)[rank - 1]
    return _sort_outwards(out, middle)


_BLOCK = 256  # new rows at once: each is combined with every calibration row


def _score_rank(rows: int, coverage: float) -> int:
    """Return the rank, from the smallest, of the score that gives the coverage."""
    # 1e-9: (9 + 1) * 0.9 is 9.000000000000002 in floating point.
    rank = math.ceil((rows + 1) * coverage - 1e-9)
    if rank > rows:
        needed = math.ceil(coverage / (1 - coverage) - 1e-9)
        raise TrainingError(
            f"an interval with coverage {coverage:g} needs {needed} calibration rows, there are "
            f"{rows}; measure more jobs (`presage profile --budget ...`)"
        )
    return rank


def _sort_outwards(quantiles: Array, middle: int) -> Array:
    """Make quantiles monotonic from the median outwards, in place, after negative margins."""
    for i in range(middle - 1, -1, -1):
        quantiles[:, i] = np.minimum(quantiles[:, i], quantiles[:, i + 1])
    for i in range(middle + 1, quantiles.shape[1]):
        quantiles[:, i] = np.maximum(quantiles[:, i], quantiles[:, i - 1])
    return quantiles
