"""Coverage and width of intervals for each left-out value of a split, by method."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.intervals.left_out import LeftOut
from benchmarks.intervals.methods import METHODS
from benchmarks.intervals.served import served_margins
from presage.models.training.fit import LEVELS
from presage.pipelines.evaluation import cross_validation as cv
from presage.system.arrays import Array, Mask

NEAR, SERVED = "near split", "as served"
MEDIAN = LEVELS.index(0.5)
NARROW, WIDE = 0.1, 0.05  # lower levels of the intervals of 80 and 90 %


@dataclass(frozen=True)
class Found:
    """Coverage of each left-out value by method, in per cent, and the median width of intervals.

    Attributes
    ----------
    title, split : str
    names, rows : sequence
        Left-out values, and the rows of each.
    coverage : mapping of (str, float) to ndarray of shape (values,)
        By method and lower level.
    width : mapping of str to float
        Median width of 80 % intervals by method, in units of that of the near split.
    above : mapping of str to sequence of float
        Share of rows above the 95 % and the 90 % quantile and the median, by method, in per cent.
    new : float
        Share of rows that are not near the training domain, in per cent.
    """

    title: str
    split: str
    names: Sequence[str]
    rows: Sequence[int]
    coverage: Mapping[tuple[str, float], Array]
    width: Mapping[str, float]
    above: Mapping[str, Sequence[float]]
    new: float


@dataclass(frozen=True)
class Known:
    """Intervals of rows of which only the job is new.

    Attributes
    ----------
    coverage : mapping of float to float
        In per cent, by lower level, as served.
    width : float
        Mean width of 80 % intervals as served, in units of that without widening.
    new : float
        Share of rows that are not near the training domain, in per cent.
    """

    title: str
    rows: int
    coverage: Mapping[float, float]
    width: float
    new: float


def compare(data: LeftOut, title: str, split: str) -> Found:
    """Return the coverage of each value of a split by margins from the other values."""
    y, far, known = data.y, data.quantiles(split), data.quantiles(data.known)
    near = data.near(split)
    groups = data.metadata[split].to_numpy(object)
    names, count = np.unique(groups.astype(str), return_counts=True)
    of_near = cv.margins(y, known)
    margins = {
        (name, level): np.full(len(y), of_near[level])
        for name in (NEAR, *METHODS, SERVED)
        for level in (WIDE, NARROW)
    }
    for value in names:
        own = groups == value
        served = served_margins(data, own, near).by_level
        for level in (WIDE, NARROW):
            margins[SERVED, level][own] = served[level][own]
            ends = (
                y[~own],
                far[~own][:, LEVELS.index(level)],
                far[~own][:, -1 - LEVELS.index(level)],
            )
            for name, method in METHODS.items():
                found = method(*ends, groups[~own], cv.COVERAGES[level])
                margins[name, level][own] = found
    inside = {key: covers(y, far, key[1], margin) for key, margin in margins.items()}
    unit = float(np.median(widths(known, NARROW, margins[NEAR, NARROW])))
    middle = 100 * float((y > far[:, MEDIAN]).mean())
    return Found(
        title, split, [_short(str(name)) for name in names], count.tolist(),
        {key: np.array([100 * ok[groups == one].mean() for one in names])
         for key, ok in inside.items()},
        {name: float(np.median(widths(far, NARROW, margin))) / unit
         for (name, level), margin in margins.items() if level == NARROW},
        {name: (*(_above(y, far, level, margins[name, level]) for level in (WIDE, NARROW)), middle)
         for name in (NEAR, *METHODS, SERVED)},
        100 * float((~near).mean()),
    )  # fmt: skip


def _short(name: str) -> str:
    """Return the repository of a source on GitHub; any other name unchanged."""
    found = re.match(r"https://github\.com/[^/]+/([^/,]+)", name)
    return found[1] if found else name


def where_known(data: LeftOut, title: str) -> Known:
    """Return the intervals of rows whose device, release and group were measured."""
    everything, near = np.ones(len(data.metadata), dtype=bool), data.near(data.known)
    y, quantiles = data.y, data.quantiles(data.known)
    wide, plain = (served_margins(data, everything, mask).by_level for mask in (near, everything))
    ratio = widths(quantiles, NARROW, wide[NARROW]) / widths(quantiles, NARROW, plain[NARROW])
    return Known(
        title, len(y),
        {level: 100 * float(covers(y, quantiles, level, wide[level]).mean())
         for level in (WIDE, NARROW)},
        float(ratio.mean()), 100 * float((~near).mean()),
    )  # fmt: skip


def covers(y: Array, quantiles: Array, level: float, margin: Array) -> Mask:
    """Return whether each interval contains the target."""
    low = LEVELS.index(level)
    inside: Mask = (quantiles[:, low] - margin <= y) & (y <= quantiles[:, -1 - low] + margin)
    return inside


def widths(quantiles: Array, level: float, margin: Array) -> Array:
    """Return the width of each interval in the space of training."""
    low = LEVELS.index(level)
    out: Array = np.maximum(quantiles[:, -1 - low] - quantiles[:, low] + 2 * margin, 1e-9)
    return out


def _above(y: Array, quantiles: Array, level: float, margin: Array) -> float:
    upper = quantiles[:, -1 - LEVELS.index(level)] + margin
    return 100 * float((y > upper).mean())
