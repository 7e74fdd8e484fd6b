"""Cells of a step's time: operators that run alike, by kind, phase and shape."""

from __future__ import annotations

import math
from bisect import bisect

from presage.features.graph import PHASES
from presage.features.op_kinds import OP_KINDS
from presage.features.op_stats import OpStats

# Kinds whose kernels differ by shape, and where: products by the ratio of compute to memory time;
# convolutions by the length of the sum behind one output (channels of a group x points of the
# kernel), on which it depends whether a library has a kernel for them.
_BY_RATIO = dict.fromkeys(
    ("MatMul", "Conv2D", "PointwiseConv2D"), (math.exp(-1.5), 1.0, math.exp(1.5))
)
_BY_SUM = {"GroupedConv2D": (60.0, 120.0, 250.0, 500.0), "DepthwiseConv2D": (10.0, 26.0)}
_BOUNDS = {**_BY_RATIO, **_BY_SUM}
LEAST_S = 1e-9  # of an operator


def cell_of(row: OpStats, compute_s: float, memory_s: float) -> str:
    """Which share an operator's time belongs to: "Conv2D forward 2"."""
    bounds = _BOUNDS.get(row.kind)
    if bounds is None:
        return f"{row.kind} {row.phase}"
    if row.kind in _BY_SUM:
        by = row.flops / (2 * max(row.output_elements, 1))
    else:
        by = (compute_s + LEAST_S) / (memory_s + LEAST_S)
    return f"{row.kind} {row.phase} {bisect(bounds, by)}"


CELLS = tuple(
    cell
    for phase in PHASES
    for kind in OP_KINDS
    for cell in (
        [f"{kind} {phase} {i}" for i in range(len(_BOUNDS[kind]) + 1)]
        if kind in _BOUNDS
        else [f"{kind} {phase}"]
    )
)
