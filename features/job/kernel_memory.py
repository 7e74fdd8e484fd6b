"""Memory that kernels take for themselves, which no tensor shows."""

from __future__ import annotations

import numpy as np

from presage.features.columns.column import OpMax
from presage.features.job.job import PRECISIONS
from presage.system.arrays import Array

# Kinds whose kernels do, in the passes where they run.
HUNGRY = ("Conv2D", "PointwiseConv2D", "GroupedConv2D", "DepthwiseConv2D", "MatMul")
PHASES = ("forward", "backward")
WORKSPACE_OF_INPUT = 0.05  # about what a kernel takes, of its input; the predictor learns the rest
_ELEMENT_BYTES = {"fp16": 2, "bf16": 2, "fp64": 8}
_FP32_BYTES = 4

KERNELS = tuple((kind, phase) for kind in HUNGRY for phase in PHASES)
# What the largest of each reads, and by precision about what it takes for an element of that.
LARGEST_INPUTS = tuple(OpMax("input_elements_max", (kind,), (phase,)) for kind, phase in KERNELS)
BYTES_OF_INPUT: Array = np.array(
    [WORKSPACE_OF_INPUT * _ELEMENT_BYTES.get(name, _FP32_BYTES) for name in PRECISIONS]
)


def kernel_bytes(kind: str, phase: str) -> str:
    """Name of the quantity: about what the largest kernel of that kind and phase takes."""
    return f"kernel_bytes.{kind}.{phase}"
