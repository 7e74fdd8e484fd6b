"""Memory that kernels allocate for themselves, which a trace of tensors does not show."""

from __future__ import annotations

import numpy as np

from presage.features.columns.column import OpMax
from presage.features.job.job_description import PRECISIONS
from presage.system.arrays import Array

# Kinds whose kernels allocate a workspace, in the phases where they run.
WORKSPACE_KINDS = ("Conv2D", "PointwiseConv2D", "GroupedConv2D", "DepthwiseConv2D", "MatMul")
PHASES = ("forward", "backward")
WORKSPACE_OF_INPUT = 0.05  # approximate; the predictor learns the residual
_ELEMENT_BYTES = {"fp16": 2, "bf16": 2, "fp64": 8}
_FP32_BYTES = 4

KERNELS = tuple((kind, phase) for kind in WORKSPACE_KINDS for phase in PHASES)
# Largest input of each kernel, and approximate workspace bytes per input element by precision.
LARGEST_INPUTS = tuple(OpMax("input_elements_max", (kind,), (phase,)) for kind, phase in KERNELS)
BYTES_OF_INPUT: Array = np.array(
    [WORKSPACE_OF_INPUT * _ELEMENT_BYTES.get(name, _FP32_BYTES) for name in PRECISIONS]
)


def kernel_bytes(kind: str, phase: str) -> str:
    """Return the name of the quantity "workspace of the largest kernel of a kind and phase"."""
    return f"kernel_bytes.{kind}.{phase}"
