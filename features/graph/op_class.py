"""Classes of operators: kind, phase and shape as one small number, by which arrays look them up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product

import numpy as np

from presage.features.graph.op_graph import PHASES
from presage.features.graph.op_kinds import OP_KINDS
from presage.features.graph.shape_class import BY_SUM, SHAPES
from presage.system.arrays import Array, Ints

# Those of a kind and phase follow one another, first the one whose shape is not known.
OP_CLASSES = tuple(
    (kind, phase, shape)
    for kind, phase in product(OP_KINDS, PHASES)
    for shape in ("", *SHAPES.get(kind, ()))
)
OP_CLASS: Mapping[tuple[str, str, str], int] = {of: code for code, of in enumerate(OP_CLASSES)}


def by_class(value: Callable[[str, str, str], int]) -> Ints:
    """What a class's kind, phase and shape come to, shape (classes,)."""
    return np.array([value(*of) for of in OP_CLASSES], dtype=np.intp)


_SHAPELESS = by_class(lambda kind, _, shape: kind in BY_SUM and not shape).astype(np.bool_)


def with_shapes(op_classes: Ints, flops: Array, output_elements: Array) -> Ints:
    """Classes in which rows that came without a shape have that of their operators together.

    Parameters
    ----------
    op_classes, flops, output_elements : ndarray of shape (ops,)
    """
    if not np.count_nonzero(_SHAPELESS.take(op_classes)):
        return op_classes
    out = op_classes.copy()
    for (kind, longest), phase in product(BY_SUM.items(), PHASES):
        shapeless = OP_CLASS[kind, phase, ""]
        rows = np.flatnonzero(op_classes == shapeless)
        # Of two gradients only the data's writes much.
        passes = 2 if phase == "backward" else 1
        length = flops[rows] / (2 * passes * np.maximum(output_elements[rows], 1))
        out[rows] = shapeless + 1 + np.searchsorted(list(longest.values()), length)
    return out
