"""Conformal calibration: intervals that cover unseen jobs as often as they say."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from presage.features.errors import TrainingError

Array = np.ndarray[Any, np.dtype[np.float64]]


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
    # 1e-9: (9 + 1) * 0.9 is 9.000000000000002 in floating point.
    rank = math.ceil((len(y) + 1) * coverage - 1e-9)
    if rank > len(y):
        needed = math.ceil(coverage / (1 - coverage) - 1e-9)
        raise TrainingError(
            f"an interval with coverage {coverage:g} needs {needed} calibration rows, there are "
            f"{len(y)}; measure more jobs (`presage profile --budget ...`)"
        )
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
    # From the median outwards: a margin below zero may not turn an interval inside out.
    for i in range(middle - 1, -1, -1):
        out[:, i] = np.minimum(out[:, i], out[:, i + 1])
    for i in range(middle + 1, len(levels)):
        out[:, i] = np.maximum(out[:, i], out[:, i - 1])
    return out
