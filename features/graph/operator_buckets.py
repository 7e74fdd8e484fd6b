"""Cells of a step's time: operators that run alike, by kind, phase and shape."""

from __future__ import annotations

import math

import numpy as np

from presage.features.graph.op_class import by_class
from presage.features.graph.op_graph import PHASES
from presage.features.graph.op_kinds import OP_KINDS
from presage.features.graph.shape_class import BY_SUM, PRODUCTS, SHAPES
from presage.system.arrays import Array, Ints

# Of compute over memory time: products run by it.
_RATIOS = np.array([math.exp(-1.5), 1.0, math.exp(1.5)])
OPTIMIZER = "optimizer"


def _cells(kind: str, phase: str) -> list[str]:
    if kind in PRODUCTS:
        return [f"{kind} {phase} {i}" for i in range(len(_RATIOS) + 1)]
    if kind in BY_SUM:
        return [f"{kind} {phase} {shape}" for shape in SHAPES[kind]]
    return [f"{kind} {phase}"]


CELLS = (
    *(cell for phase in PHASES[:2] for kind in OP_KINDS for cell in _cells(kind, phase)),
    OPTIMIZER,
)


def _first_cell(kind: str, phase: str, shape: str) -> int:
    if phase == OPTIMIZER:
        return CELLS.index(OPTIMIZER)
    cells = _cells(kind, phase)
    return CELLS.index(cells[SHAPES[kind].index(shape)] if kind in BY_SUM and shape else cells[0])


_FIRST = by_class(_first_cell)
_BY_RATIO = by_class(lambda kind, phase, _: kind in PRODUCTS and phase != OPTIMIZER)


def cells_of(op_classes: Ints, ratio: Array) -> Ints:
    """To which of ``CELLS`` the time of each operator belongs.

    Parameters
    ----------
    op_classes : ndarray of int, shape (ops,)
        Positions in ``OP_CLASSES``; convolutions by groups have their shape.
    ratio : ndarray of shape (ops,)
        Compute over memory time.
    """
    step = _RATIOS.searchsorted(ratio, "right")
    return _FIRST.take(op_classes) + _BY_RATIO.take(op_classes) * step
