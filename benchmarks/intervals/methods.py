"""Methods that compute the margins of a left-out group from the rows of other groups."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from presage.models.calibration.conformal import conformal_margin
from presage.models.calibration.group_margins import group_margin
from presage.system.arrays import Array, Names

# Margin by target, lower and upper quantile and group of the calibration rows, and coverage.
Method = Callable[[Array, Array, Array, Names, float], float]


def by_row(y: Array, low: Array, high: Array, _groups: Names, coverage: float) -> float:
    """Return the margin over all left-out rows: large groups count more."""
    return conformal_margin(y, low, high, coverage=coverage)


def by_group(y: Array, low: Array, high: Array, groups: Names, coverage: float) -> float:
    """Return the margin that releases have where something is new."""
    return group_margin(y, low, high, groups, coverage=coverage)


def median_group(y: Array, low: Array, high: Array, groups: Names, coverage: float) -> float:
    """Return the median over groups of the margin of each group."""
    return float(np.median(_own_margins(y, low, high, groups, coverage)))


def upper_group(y: Array, low: Array, high: Array, groups: Names, coverage: float) -> float:
    """Return the margin that 80 % of the groups' own margins are below."""
    return float(np.quantile(_own_margins(y, low, high, groups, coverage), 0.8))


def random_effect(y: Array, low: Array, high: Array, groups: Names, coverage: float) -> float:
    """Return the margin if a normal deviation of the group is drawn anew for each row.

    Its variance is that of the groups' median errors, its distribution Student's with one degree of
    freedom less than there are groups.
    """
    from scipy.stats import t

    names, position = np.unique(groups, return_inverse=True)
    middle = (low + high) / 2
    off = np.array([np.median((y - middle)[position == i]) for i in range(len(names))])
    free = max(len(names) - 1, 1)
    spread = off.std(ddof=1) if len(names) > 1 else 0.0
    drawn = t.ppf((np.arange(51) + 0.5) / 51, free) * spread * np.sqrt(1 + 1 / len(names))
    moved = (y - off[position])[:, None] + drawn
    scores = np.maximum(low[:, None] - moved, moved - high[:, None])
    count = np.bincount(position)[position]
    weights = np.repeat(1 / (len(names) * count * len(drawn)), len(drawn))
    order = np.argsort(scores, axis=None, kind="stable")
    reached = int(np.searchsorted(np.cumsum(weights[order]), coverage - 1e-9))
    return float(scores.ravel()[order][min(reached, scores.size - 1)])


def _own_margins(y: Array, low: Array, high: Array, groups: Names, coverage: float) -> Array:
    scores = np.maximum(low - y, y - high)
    return np.array([np.quantile(scores[groups == one], coverage) for one in np.unique(groups)])


METHODS: Mapping[str, Method] = {
    "left-out rows": by_row,
    "groups alike": by_group,
    "median of groups": median_group,
    "80 % of groups": upper_group,
    "random effect": random_effect,
}
