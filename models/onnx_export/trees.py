"""Boosted trees as an operator of ONNX: ``ai.onnx.ml.TreeEnsembleRegressor``."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import helper

from presage.models.networks.boosted_trees import BoostedTrees

TREES = "trees"  # input of a fused graph: weighted forecasts of the trees, (rows, 1)
_DOMAIN, _VERSION = "ai.onnx.ml", 3


def connect_trees(model: Any, trees: BoostedTrees) -> None:
    """Replace the input ``TREES`` of a model, in place, by trees on its input ``features``."""
    (position,) = [i for i, value in enumerate(model.graph.input) if value.name == TREES]
    del model.graph.input[position]
    model.graph.node.insert(0, _make_node(trees))
    model.opset_import.append(helper.make_opsetid(_DOMAIN, _VERSION))


def _make_node(trees: BoostedTrees) -> Any:
    arrays = {name: array.numpy() for name, array in trees.state_dict().items()}
    at, roots = np.arange(len(arrays["low"])), arrays["roots"]
    tree = np.searchsorted(roots, at, side="right") - 1
    start = roots[tree]
    is_leaf = arrays["low"] == at
    return helper.make_node(
        "TreeEnsembleRegressor",
        ["features"],
        [TREES],
        domain=_DOMAIN,
        aggregate_function="SUM",
        n_targets=1,
        base_values=arrays["base"].tolist(),
        nodes_treeids=tree.tolist(),
        nodes_nodeids=(at - start).tolist(),
        nodes_featureids=arrays["column"].tolist(),
        nodes_modes=np.where(is_leaf, "LEAF", "BRANCH_LEQ").tolist(),
        nodes_values=arrays["threshold"].tolist(),
        nodes_truenodeids=np.where(is_leaf, 0, arrays["low"] - start).tolist(),
        nodes_falsenodeids=np.where(is_leaf, 0, arrays["high"] - start).tolist(),
        target_treeids=tree[is_leaf].tolist(),
        target_nodeids=(at - start)[is_leaf].tolist(),
        target_ids=[0] * int(is_leaf.sum()),
        target_weights=arrays["value"][is_leaf].tolist(),
    )
