"""Operator buckets: operators with similar performance, by kind, phase and shape."""

from __future__ import annotations

import math

import numpy as np

from presage.features.graph.op_class import map_classes
from presage.features.graph.op_graph import PHASES
from presage.features.graph.op_kinds import OP_KINDS
from presage.features.graph.shape_class import PRODUCTS, SHAPES, SUM_LENGTH_CLASSES
from presage.system.arrays import Array, Ints

# Compute over memory time, which determines the performance of products.
RATIOS = np.array([math.exp(-1.5), 1.0, math.exp(1.5)])
OPTIMIZER = "optimizer"


def _buckets(kind: str, phase: str) -> list[str]:
    if kind in PRODUCTS:
        return [f"{kind} {phase} {i}" for i in range(len(RATIOS) + 1)]
    if kind in SUM_LENGTH_CLASSES:
        return [f"{kind} {phase} {shape}" for shape in SHAPES[kind]]
    return [f"{kind} {phase}"]


OPERATOR_BUCKETS = (
    *(bucket for phase in PHASES[:2] for kind in OP_KINDS for bucket in _buckets(kind, phase)),
    OPTIMIZER,
)


def _first_bucket(kind: str, phase: str, shape: str) -> int:
    if phase == OPTIMIZER:
        return OPERATOR_BUCKETS.index(OPTIMIZER)
    buckets = _buckets(kind, phase)
    return OPERATOR_BUCKETS.index(
        buckets[SHAPES[kind].index(shape)] if kind in SUM_LENGTH_CLASSES and shape else buckets[0]
    )


FIRST_BUCKET = map_classes(_first_bucket)
HAS_RATIO_BUCKETS = map_classes(lambda kind, phase, _: kind in PRODUCTS and phase != OPTIMIZER)


def bucket_positions(op_classes: Ints, ratio: Array) -> Ints:
    """Return the position in ``OPERATOR_BUCKETS`` of each operator's time.

    Parameters
    ----------
    op_classes : ndarray of int, shape (ops,)
        Positions in ``OP_CLASSES``; grouped convolutions have a shape.
    ratio : ndarray of shape (ops,)
        Compute over memory time.
    """
    step = RATIOS.searchsorted(ratio, "right")
    return FIRST_BUCKET.take(op_classes) + HAS_RATIO_BUCKETS.take(op_classes) * step
