"""Conformal calibration: intervals that cover unseen jobs as often as they say."""

from __future__ import annotations

import math

import numpy as np

from presage.errors import TrainingError
from presage.system.arrays import Array, Ints


def conformal_margin(y: Array, low: Array, high: Array, *, coverage: float) -> float:
    """Margin that turns a quantile band into a prediction interval with ``coverage``.

    Parameters
    ----------
    y, low, high : ndarray of shape (rows,)
        Measured values of rows the model has not seen, and their predicted quantiles.
    coverage : float in (0, 1)
        Wanted marginal coverage. Holds if these rows and future jobs are exchangeable.

    Returns
    -------
    float
        To widen both ends by, in the unit of ``y``; negative when the band was too wide.

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


def cv_plus(
    y: Array, left_out: Array, fold: Ints, asked: Array, levels: tuple[float, ...]
) -> Array:
    """Calibrated quantiles of rows that no network has seen, by networks that each left some out.

    Where the networks differ on a row its interval is as wide as that, whatever margin the rows
    that they left out ask for.

    Parameters
    ----------
    y, left_out : ndarray of shape (rows,) and (rows, levels)
        Measured values, and their quantiles by the networks that had not seen them.
    fold : ndarray of int, shape (rows,)
        Which networks those are, as a position in ``asked``.
    asked : ndarray of shape (folds, rows asked, levels)
        Each fold's quantiles of the rows that are asked.

    Returns
    -------
    ndarray of shape (rows asked, levels)
        The median is the mean of the folds'.

    Raises
    ------
    TrainingError
        There are too few rows for a coverage.

    References
    ----------
    Barber, Candes, Ramdas, Tibshirani: Predictive inference with the jackknife+, Annals of
    Statistics 2021, section 3; with the scores of conformalized quantile regression.
    """
    out: Array = asked.mean(axis=0)
    middle = levels.index(0.5)
    for low in range(middle):
        high = len(levels) - 1 - low
        rank = _score_rank(len(y), 1 - 2 * levels[low])
        score = np.maximum(left_out[:, low] - y, y - left_out[:, high])[:, None]
        for start in range(0, asked.shape[1], _BLOCK):
            block = slice(start, start + _BLOCK)
            ends = asked[fold, block]
            lower, upper = ends[..., low] - score, ends[..., high] + score
            out[block, low] = np.partition(lower, len(y) - rank, axis=0)[len(y) - rank]
            out[block, high] = np.partition(upper, rank - 1, axis=0)[rank - 1]
    return _sort_outwards(out, middle)


_BLOCK = 256  # rows asked at once: every one meets every row that was left out


def _score_rank(rows: int, coverage: float) -> int:
    """Which score, counted from the least, gives the coverage."""
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
    """From the median outwards, in place: no margin may turn an interval inside out."""
    for i in range(middle - 1, -1, -1):
        quantiles[:, i] = np.minimum(quantiles[:, i], quantiles[:, i + 1])
    for i in range(middle + 1, quantiles.shape[1]):
        quantiles[:, i] = np.maximum(quantiles[:, i], quantiles[:, i - 1])
    return quantiles
