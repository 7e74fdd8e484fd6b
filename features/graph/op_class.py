"""Operator classes: kind, phase and shape as one small integer that arrays can index."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product

import numpy as np

from presage.features.graph.op_graph import PHASES
from presage.features.graph.op_kinds import OP_KINDS
from presage.features.graph.shape_class import SHAPES, SUM_LENGTH_CLASSES
from presage.system.arrays import Array, Ints

# Classes of one kind and phase are consecutive; the first has an unknown shape.
OP_CLASSES = tuple(
    (kind, phase, shape)
    for kind, phase in product(OP_KINDS, PHASES)
    for shape in ("", *SHAPES.get(kind, ()))
)
OP_CLASS: Mapping[tuple[str, str, str], int] = {
    op_class: code for code, op_class in enumerate(OP_CLASSES)
}


def map_classes(value: Callable[[str, str, str], int]) -> Ints:
    """Return ``value(kind, phase, shape)`` of each class, shape (classes,)."""
    return np.array([value(*op_class) for op_class in OP_CLASSES], dtype=np.intp)


_SHAPELESS = map_classes(lambda kind, _, shape: kind in SUM_LENGTH_CLASSES and not shape).astype(
    np.bool_
)


def infer_shape_classes(op_classes: Ints, flops: Array, output_elements: Array) -> Ints:
    """Return classes in which rows without a shape have the shape that fits their totals.

    Parameters
    ----------
    op_classes, flops, output_elements : ndarray of shape (ops,)
    """
    if not np.count_nonzero(_SHAPELESS.take(op_classes)):
        return op_classes
    out = op_classes.copy()
    for (kind, longest), phase in product(SUM_LENGTH_CLASSES.items(), PHASES):
        shapeless = OP_CLASS[kind, phase, ""]
        rows = np.flatnonzero(op_classes == shapeless)
        # Of the two gradients, only the data's has a large output.
        passes = 2 if phase == "backward" else 1
        length = flops[rows] / (2 * passes * np.maximum(output_elements[rows], 1))
        out[rows] = shapeless + 1 + np.searchsorted(list(longest.values()), length)
    return out
