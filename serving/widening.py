"""Wider intervals for jobs that a release has not learnt from."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[np.float64]]


def moved_out(
    quantiles: Array, margins: Mapping[float, float], levels: tuple[float, ...], *, odds: bool
) -> Array:
    """Move the ends of intervals further from the median, in the space where they were learnt.

    Parameters
    ----------
    quantiles : ndarray of shape (rows, levels)
        In their unit.
    margins : mapping of float to float
        By lower level, at least 0.
    odds : bool
        Of a fraction: margins are of log-odds. Else of the logarithm of a scale.
    """
    out = quantiles.copy()
    for level, margin in margins.items():
        low, high = levels.index(level), len(levels) - 1 - levels.index(level)
        for end, factor in ((low, math.exp(-margin)), (high, math.exp(margin))):
            moved = quantiles[:, end] * factor
            out[:, end] = moved / (1 - quantiles[:, end] + moved) if odds else moved
    # An outer end may be moved by less than an inner one, and stays outside all the same.
    middle = levels.index(0.5)
    out[:, middle::-1] = np.minimum.accumulate(out[:, middle::-1], axis=1)
    out[:, middle:] = np.maximum.accumulate(out[:, middle:], axis=1)
    return out
