"""Conformal margins for requests of an unmeasured group: a device, a framework release and so on.

Errors on the rows of one device have a common part: its deviation from what its data sheet
explains. Rows of measured devices, left out at random, do not show it, so their margins are too
narrow on the next device. Here a calibration row is predicted by networks that were not trained on
its group, and groups count alike, however many rows they have (decision 60).
"""

from __future__ import annotations

import numpy as np

from presage.system.arrays import Array, Names

MIN_GROUPS = 2  # groups that show how much groups differ
# Groups from which the unseen one counts as one more, above all. The weight of one of fewer would
# ask for nearly the largest score; the quantile of the groups' own margins does not.
MANY_GROUPS = 9
OWN_MARGINS = 0.8


def group_margin(y: Array, low: Array, high: Array, groups: Names, *, coverage: float) -> float:
    """Return the margin that gives rows of a further group an interval with ``coverage``.

    A new row is a random row of a random group: each of K groups has the weight 1 / (K + 1), spread
    evenly over its rows, and the unseen group has the remainder, above every score. With fewer than
    ``MANY_GROUPS``, the margin is a high quantile of the groups' own margins, without a guarantee.

    Parameters
    ----------
    y, low, high : ndarray of shape (rows,)
        Measured values, and quantiles by networks that were not trained on the row's group.
    groups : ndarray of str, shape (rows,)
        Group of each row.
    coverage : float in (0, 1)
        Nominal coverage, marginal over groups and rows. It holds if groups are exchangeable.

    Returns
    -------
    float
        Widening of both ends, in the unit of ``y``; negative if the band was too wide.

    References
    ----------
    Lee, Barber, Willett: Distribution-free inference with hierarchical data, 2023, HCP. Dunn,
    Wasserman, Ramdas: Distribution-free prediction sets for two-layer hierarchical models, Journal
    of the American Statistical Association, 2023.
    """
    scores = np.maximum(low - y, y - high)
    _, position, count = np.unique(groups, return_inverse=True, return_counts=True)
    known = len(count)
    if known < MANY_GROUPS:
        own = [np.quantile(scores[position == group], coverage) for group in range(known)]
        return float(np.quantile(own, OWN_MARGINS))
    weights = 1 / ((known + 1) * count[position])
    return _weighted_quantile(scores, weights, coverage)


def _weighted_quantile(scores: Array, weights: Array, level: float) -> float:
    """Return the smallest score with at least the weight ``level`` at or below it."""
    order = np.argsort(scores, kind="stable")
    reached = int(np.searchsorted(np.cumsum(weights[order]), level - 1e-9))
    return float(scores[order][min(reached, len(scores) - 1)])
