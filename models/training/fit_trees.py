"""Training of boosted trees, whose forecasts are averaged with those of the networks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from presage.models.networks.boosted_trees import BoostedTrees
from presage.system.arrays import Array

# Chosen on inner folds of the committed campaigns (decision 65).
TREES = 200
LEARNING_RATE = 0.07
LEAVES = 16
LEAST_LEAF_ROWS = 5
COLUMN_FRACTION = 0.3  # of the columns, drawn anew for every test


def make_trees(seed: int = 0) -> Any:
    """Return boosted trees that minimize the absolute error; equal rows and seed, equal trees."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    return HistGradientBoostingRegressor(
        loss="absolute_error", max_iter=TREES, learning_rate=LEARNING_RATE, max_leaf_nodes=LEAVES,
        min_samples_leaf=LEAST_LEAF_ROWS, max_features=COLUMN_FRACTION, early_stopping=False,
        random_state=seed,
    )  # fmt: skip


def fit_trees(
    features: Array,
    y: Array,
    row_weights: Array,
    read: Sequence[int],
    *,
    weight: float,
    seed: int = 0,
) -> BoostedTrees:
    """Fit boosted trees to the target of the networks.

    Parameters
    ----------
    features : ndarray of shape (rows, columns)
        Raw features. They are rounded to float32, as a served model reads them.
    y : ndarray of shape (rows,)
    row_weights : ndarray of shape (rows,)
        0 hides a row.
    read : sequence of int
        Positions of the columns that the trees read.
    weight : float in [0, 1]
        Weight of the trees in the mean.
    seed : int
    """
    used, positions = row_weights > 0, list(dict.fromkeys(read))
    x = features[used][:, positions].astype(np.float32)
    model = make_trees(seed).fit(x, y[used], row_weights[used])
    return convert_trees(model, positions, weight=weight)


def convert_trees(model: Any, positions: Sequence[int], *, weight: float) -> BoostedTrees:
    """Convert scikit-learn's trees, whose columns are at ``positions`` of a feature matrix."""
    # scikit-learn has no public access to the nodes.
    trees = [of_target.nodes for (of_target,) in model._predictors]
    roots = np.cumsum([0, *map(len, trees)])[:-1]
    nodes = np.concatenate(trees)
    start = np.repeat(roots, [len(tree) for tree in trees])
    at, is_leaf = np.arange(len(nodes)), nodes["is_leaf"].astype(bool)
    arrays = {
        "column": np.asarray(positions)[np.where(is_leaf, 0, nodes["feature_idx"])],
        "threshold": _round_down(np.where(is_leaf, 0.0, nodes["num_threshold"])),
        "low": np.where(is_leaf, at, start + nodes["left"]),
        "high": np.where(is_leaf, at, start + nodes["right"]),
        "value": (weight * np.where(is_leaf, nodes["value"], 0.0)).astype(np.float32),
        "roots": roots,
        "base": (weight * model._baseline_prediction[0]).astype(np.float32),
        "weight": np.array([weight], dtype=np.float32),
    }
    return BoostedTrees({name: torch.from_numpy(array) for name, array in arrays.items()})


def _round_down(thresholds: Array) -> Array:
    """Return the largest float32 up to each threshold: float32 values pass the same tests."""
    near = thresholds.astype(np.float32)
    below = np.nextafter(near, np.float32(-np.inf))
    out: Array = np.where(near.astype(np.float64) > thresholds, below, near)
    return out
