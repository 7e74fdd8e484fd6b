"""Baselines without a network, on the same features and folds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any

import numpy as np

from presage.models.training.splits import LONG_ROWS, Folds
from presage.system.arrays import Array
from presage.system.processes.spread import spread


class Constant:
    """Baseline that predicts the median of the training rows."""

    def fit(self, _x: Array, y: Array) -> Constant:
        """Store the median of ``y``, shape (rows,)."""
        self._median = float(np.median(y))
        return self

    def predict(self, x: Array) -> Array:
        """Return the median for every row of ``x``."""
        return np.full(len(x), self._median)


class MeanByMembers:
    """Baseline of slowdowns: the mean of the training rows of co-locations with as many members.

    ``x`` has one column, the number of members. A number that was not measured gets the mean of the
    nearest one; of two equally near ones, of the smaller.
    """

    def fit(self, x: Array, y: Array) -> MeanByMembers:
        """Store the mean of ``y``, shape (rows,), for each number of members."""
        self._sizes, positions = np.unique(x[:, 0], return_inverse=True)
        self._means = np.bincount(positions, weights=y) / np.bincount(positions)
        return self

    def predict(self, x: Array) -> Array:
        """Return the mean of the nearest number of members for every row of ``x``."""
        nearest = np.abs(x[:, :1] - self._sizes).argmin(axis=1)
        out: Array = self._means[nearest]
        return out


def make_linear() -> Any:
    """Return ridge regression on standardized features."""
    from sklearn.linear_model import RidgeCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(StandardScaler(), RidgeCV(np.logspace(-3, 3, 13)))


def make_boosted_trees() -> Any:
    """Return boosted trees that minimize the absolute error."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    return HistGradientBoostingRegressor(
        loss="absolute_error", max_iter=300, learning_rate=0.05, min_samples_leaf=5, random_state=0
    )


TREES = "boosted_trees"
BASELINES: Mapping[str, Callable[[], Any]] = {
    "constant": Constant,
    "linear": make_linear,
    TREES: make_boosted_trees,
}
MEAN_BY_MEMBERS = "mean_by_members"  # of slowdowns, besides ``BASELINES``


# Rows that a baseline is trained on; evenly spaced if there are more. Trees on a million rows would
# take hours, for figures that are only compared with the networks'.
MOST_ROWS = 20_000


def predict_out_of_fold(
    name: str,
    x: Array,
    y: Array,
    folds: Folds,
    hidden: Array | None = None,
    *,
    on_fold: Callable[[], None] | None = None,
) -> Array:
    """Return forecasts of shape (rows,), each by a baseline trained without the row's fold.

    Parameters
    ----------
    name : str
        Key of ``BASELINES``, or ``MEAN_BY_MEMBERS``.
    x : ndarray of shape (rows, columns)
    y : ndarray of shape (rows,)
    folds : ndarray of int, shape (rows,)
    hidden : ndarray of shape (rows, folds), optional
        Nonzero marks rows to leave out of a fold's training, such as co-runners of its victims; by
        default the rows of the fold.
    on_fold : callable, optional
        Called after every fold.
    """
    fold_numbers = np.unique(folds)
    forecast = np.empty(len(y))
    forecasts = spread(
        _predict_fold, fold_numbers.tolist(), shared=(name, x, y, folds, hidden),
        is_long=name == TREES and len(y) >= LONG_ROWS,
    )  # fmt: skip
    with closing(forecasts):
        for fold, of_fold in zip(fold_numbers, forecasts, strict=True):
            forecast[folds == fold] = of_fold
            if on_fold is not None:
                on_fold()
    return forecast


def _predict_fold(
    name: str, x: Array, y: Array, folds: Folds, hidden: Array | None, fold: int
) -> Array:
    """Return the forecasts of one fold."""
    make = MeanByMembers if name == MEAN_BY_MEMBERS else BASELINES[name]
    test = folds == fold
    is_hidden = test if hidden is None else hidden[:, fold].astype(bool)
    train = np.flatnonzero(~is_hidden)
    train = train[:: max(1, math.ceil(len(train) / MOST_ROWS))]
    out: Array = make().fit(x[train], y[train]).predict(x[test])
    return out
