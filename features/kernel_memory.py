"""Memory that kernels take for themselves, which no tensor shows."""

from __future__ import annotations

from collections.abc import Iterable

from presage.features.op_stats import OpStats

# Kinds whose kernels do, in the passes where they run.
HUNGRY = ("Conv2D", "PointwiseConv2D", "GroupedConv2D", "DepthwiseConv2D", "MatMul")
PHASES = ("forward", "backward")
WORKSPACE_OF_INPUT = 0.05  # about what a kernel takes, of its input; the predictor learns the rest
_ELEMENT_BYTES = {"fp16": 2, "bf16": 2, "fp64": 8}
_FP32_BYTES = 4


def kernel_bytes(stats: Iterable[OpStats], precision: str) -> dict[tuple[str, str], float]:
    """About what the largest kernel of each kind and phase takes."""
    element_bytes = _ELEMENT_BYTES.get(precision, _FP32_BYTES)
    taken: dict[tuple[str, str], float] = {}
    for row in stats:
        if row.kind in HUNGRY and row.phase in PHASES:
            key = (row.kind, row.phase)
            bytes_taken = WORKSPACE_OF_INPUT * element_bytes * row.input_elements_max
            taken[key] = max(taken.get(key, 0.0), bytes_taken)
    return taken
