"""What anyone would try first: the same features and folds, without a network."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from presage.models.training.splits import Folds
from presage.system.arrays import Array


class Constant:
    """The median of the training rows."""

    def fit(self, _x: Array, y: Array) -> Constant:
        """Remember the median of ``y``, shape (rows,)."""
        self._median = float(np.median(y))
        return self

    def predict(self, x: Array) -> Array:
        """The median, for every row of ``x``."""
        return np.full(len(x), self._median)


def make_linear() -> Any:
    """Ridge regression of the standardized features."""
    from sklearn.linear_model import RidgeCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(StandardScaler(), RidgeCV(np.logspace(-3, 3, 13)))


def make_boosted_trees() -> Any:
    """Boosted trees for the absolute error."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    return HistGradientBoostingRegressor(
        loss="absolute_error", max_iter=300, learning_rate=0.05, min_samples_leaf=5, random_state=0
    )


BASELINES: Mapping[str, Callable[[], Any]] = {
    "constant": Constant,
    "linear": make_linear,
    "boosted_trees": make_boosted_trees,
}


def predict_out_of_fold(
    name: str,
    x: Array,
    y: Array,
    folds: Folds,
    hidden: Array | None = None,
    *,
    on_fold: Callable[[], None] | None = None,
) -> Array:
    """Forecasts of shape (rows,), each by a baseline that has not seen the row's fold.

    ``hidden``, of shape (rows, folds), marks further rows that a fold may not train on (co-runners
    of its victims). ``on_fold`` is called after every fold.
    """
    forecast = np.empty(len(y))
    for fold in np.unique(folds):
        test = folds == fold
        train = ~test if hidden is None else ~hidden[:, int(fold)].astype(bool)
        forecast[test] = BASELINES[name]().fit(x[train], y[train]).predict(x[test])
        if on_fold is not None:
            on_fold()
    return forecast
