"""What a job's memory is made of: the device's context, what the trace saw alive, kernels' own.

As with time, the shares say by which factor the sum is off: an allocator rounds, kernels take
workspaces that no tensor shows, and both depend on what holds the bytes.
"""

from __future__ import annotations

from presage.features.columns.column import ON_TOP, FeatureColumn, OpSum
from presage.features.graph.step_memory import HOLDERS as BY_HOLDER
from presage.features.job.kernel_memory import KERNELS, kernel_bytes

_MOVED_BY = (
    "AddV2", "Mul", "Conv2D", "PointwiseConv2D", "GroupedConv2D", "DepthwiseConv2D", "Softmax",
    "Relu", "MatMul", "Attention", "Normalization", "Elementwise", "Copy",
)  # fmt: skip
LEAST_SHARE = 1e-3  # of the bytes that matter


def _kernel(kind: str, phase: str) -> FeatureColumn:
    return FeatureColumn(
        f"memory_share.{kind}.{phase}", "of memory_prior_bytes, taken by the largest kernel",
        LEAST_SHARE, kernel_bytes(kind, phase), over="memory_prior_bytes", part=ON_TOP,
    )  # fmt: skip


def _held(holder: str) -> FeatureColumn:
    return FeatureColumn(
        f"memory_share.{holder.removesuffix('_bytes')}", "of memory_prior_bytes", LEAST_SHARE,
        holder, over="memory_prior_bytes", part=1.0,
    )  # fmt: skip


def _alive(holder: str) -> FeatureColumn:
    return FeatureColumn(
        f"live_share.{holder.removesuffix('_bytes')}", "of peak_live_bytes", LEAST_SHARE,
        holder, over="peak_live_bytes", least_over=1.0,
    )  # fmt: skip


def _moved(kind: str) -> FeatureColumn:
    return FeatureColumn(
        f"moved_share.{kind}", "of bytes_moved", LEAST_SHARE,
        OpSum("bytes_moved", (kind,)), over=OpSum("bytes_moved"), least_over=1.0,
    )  # fmt: skip


HOLDERS: tuple[FeatureColumn, ...] = (
    FeatureColumn(
        "memory_share.context", "the device's, of memory_prior_bytes", LEAST_SHARE,
        "context_bytes", over="memory_prior_bytes", part=1.0,
    ),
    *map(_held, BY_HOLDER),
    *(_kernel(*kernel) for kernel in KERNELS),
    *map(_alive, ("parameter_bytes", "activation_bytes", "workspace_bytes")),
    *map(_moved, _MOVED_BY),
)  # fmt: skip
