"""Cells of a step's time: operators that run alike, by kind, phase and shape."""

from __future__ import annotations

import math
from bisect import bisect

from presage.features.graph import PHASES
from presage.features.op_kinds import OP_KINDS
from presage.features.op_shape import BY_SUM, SHAPES, class_of_sum
from presage.features.op_stats import OpStats

# Products run by how far they are from the ridge: by the ratio of compute to memory time.
BY_RATIO = ("MatMul", "Conv2D", "PointwiseConv2D")
_RATIOS = (math.exp(-1.5), 1.0, math.exp(1.5))
LEAST_S = 1e-9  # of an operator


def cell_of(row: OpStats, compute_s: float, memory_s: float) -> str:
    """Which share an operator's time belongs to: "Conv2D forward 2".

    Convolutions by groups are told apart in the forward pass, by their shape; of a row that came
    without one, by its operators together.
    """
    if row.kind in BY_RATIO:
        ratio = (compute_s + LEAST_S) / (memory_s + LEAST_S)
        return f"{row.kind} {row.phase} {bisect(_RATIOS, ratio)}"
    if row.kind in BY_SUM and row.phase == "forward":
        mean = row.flops / (2 * max(row.output_elements, 1))
        return f"{row.kind} {row.phase} {row.shape or class_of_sum(row.kind, mean)}"
    return f"{row.kind} {row.phase}"


def _cells(kind: str, phase: str) -> list[str]:
    if kind in BY_RATIO:
        return [f"{kind} {phase} {i}" for i in range(len(_RATIOS) + 1)]
    if kind in BY_SUM and phase == "forward":
        return [f"{kind} {phase} {shape}" for shape in SHAPES[kind]]
    return [f"{kind} {phase}"]


CELLS = tuple(cell for phase in PHASES for kind in OP_KINDS for cell in _cells(kind, phase))
