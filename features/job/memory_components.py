"""Memory components of a job: device context, traced tensors, and kernel workspaces.

As for time, the shares of the components determine the factor over their sum: an allocator
rounds, kernels allocate workspaces that a trace does not show, and both depend on the component.
"""

from __future__ import annotations

from presage.features.columns.column import ON_TOP, FeatureColumn, OpSum
from presage.features.graph.step_memory import MEMORY_COMPONENTS
from presage.features.job.kernel_memory import KERNELS, kernel_bytes

_MOVED_BY = (
    "AddV2", "Mul", "Conv2D", "PointwiseConv2D", "GroupedConv2D", "DepthwiseConv2D", "Softmax",
    "Relu", "MatMul", "Attention", "Normalization", "Elementwise", "Copy",
)  # fmt: skip
LEAST_SHARE = 1e-3  # smallest share that matters


def _kernel(kind: str, phase: str) -> FeatureColumn:
    return FeatureColumn(
        f"memory_share.{kind}.{phase}", "of memory_prior_bytes, taken by the largest kernel",
        LEAST_SHARE, kernel_bytes(kind, phase),
        denominator="memory_prior_bytes", prior_weight=ON_TOP,
    )  # fmt: skip


def _component(component: str) -> FeatureColumn:
    return FeatureColumn(
        f"memory_share.{component.removesuffix('_bytes')}", "of memory_prior_bytes", LEAST_SHARE,
        component, denominator="memory_prior_bytes", prior_weight=1.0,
    )  # fmt: skip


def _live(component: str) -> FeatureColumn:
    return FeatureColumn(
        f"live_share.{component.removesuffix('_bytes')}", "of peak_live_bytes", LEAST_SHARE,
        component, denominator="peak_live_bytes", min_denominator=1.0,
    )  # fmt: skip


def _moved(kind: str) -> FeatureColumn:
    return FeatureColumn(
        f"moved_share.{kind}", "of bytes_moved", LEAST_SHARE,
        OpSum("bytes_moved", (kind,)), denominator=OpSum("bytes_moved"), min_denominator=1.0,
    )  # fmt: skip


MEMORY_COLUMNS: tuple[FeatureColumn, ...] = (
    FeatureColumn(
        "memory_share.context", "the device's, of memory_prior_bytes", LEAST_SHARE,
        "context_bytes", denominator="memory_prior_bytes", prior_weight=1.0,
    ),
    *map(_component, MEMORY_COMPONENTS),
    *(_kernel(*kernel) for kernel in KERNELS),
    *map(_live, ("parameter_bytes", "activation_bytes", "workspace_bytes")),
    *map(_moved, _MOVED_BY),
)  # fmt: skip
