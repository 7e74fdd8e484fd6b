"""Cells of a step's time: operators that run alike, by kind, phase and shape."""

from __future__ import annotations

import math
from bisect import bisect

from presage.features.graph import PHASES
from presage.features.op_kinds import OP_KINDS
from presage.features.op_shape import BY_SUM, PRODUCTS, SHAPES, class_of_sum
from presage.features.op_stats import OpStats

_RATIOS = (math.exp(-1.5), 1.0, math.exp(1.5))  # compute over memory time; products run by it
LEAST_S = 1e-9  # of an operator
OPTIMIZER = "optimizer"


def cell_of(row: OpStats, compute_s: float, memory_s: float) -> str:
    """Which share an operator's time belongs to: "Conv2D forward 2"."""
    if row.phase == "optimizer":
        return OPTIMIZER
    if row.kind in PRODUCTS:
        ratio = (compute_s + LEAST_S) / (memory_s + LEAST_S)
        return f"{row.kind} {row.phase} {bisect(_RATIOS, ratio)}"
    if row.kind in BY_SUM:
        return f"{row.kind} {row.phase} {row.shape or _shape_of_sums(row)}"
    return f"{row.kind} {row.phase}"


def _shape_of_sums(row: OpStats) -> str:
    """Of a row that came without a shape: its operators together."""
    # Of two gradients only the data's writes much.
    passes = 2 if row.phase == "backward" else 1
    return class_of_sum(row.kind, row.flops / (2 * passes * max(row.output_elements, 1)))


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
