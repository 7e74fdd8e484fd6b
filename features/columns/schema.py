"""Feature sets: the meaning of each column, computed from a job, a device and a share.

``published`` is exactly the source document's set (requirements F1-F3). ``full`` holds the inputs
of a roofline (``COMMON``), the operator time shares of a step and the memory components of a job;
each predictor reads a part of it (``features/quantities/quantity_registry.py``). A column also
defines its scaling: most columns are scales, so the model takes their logarithm, in the one place
that training and serving share.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from presage.features.columns.column import FeatureColumn, OpMax, OpSum
from presage.features.columns.column_plan import ColumnPlan
from presage.features.columns.placement_table import PlacementTable, placement_table
from presage.features.graph.op_kinds import CONVOLUTIONS, PUBLISHED_KINDS
from presage.features.graph.operator_time_shares import TIME_SHARE_COLUMNS
from presage.features.job.memory_components import MEMORY_COLUMNS
from presage.features.placement import Placement
from presage.system.arrays import Matrix

_GROUPS = {
    "convolution": CONVOLUTIONS,
    "matmul": ("MatMul", "Attention", "Recurrent"),
    "normalization": ("Normalization", "Softmax", "Reduction"),
    "elementwise": ("AddV2", "BiasAdd", "BiasAddGrad", "Mul", "Relu", "Elementwise"),
    "pooling": ("MaxPool", "AvgPool"),
    "embedding": ("Embedding",),
    "copy": ("Copy", "Concat"),
    "update": ("Update",),
}


def _published_input(kind: str) -> FeatureColumn:
    kinds = CONVOLUTIONS if kind == "Conv2D" else (kind,)
    return FeatureColumn(
        f"{kind}.input_elements_max", f"largest input of any {kind}, 0 if absent", 1.0,
        OpMax("input_elements_max", kinds),
    )  # fmt: skip


def _group(group: str, what: str, value: str) -> FeatureColumn:
    kinds = _GROUPS[group]
    return FeatureColumn(
        f"{group}_{what}", f"{what} of {', '.join(kinds)}", 1.0, OpSum(value, kinds)
    )


_JOB = (
    FeatureColumn("batch_size", "samples a step", 1.0),
    FeatureColumn("iterations", "steps of the job", 1.0),
    FeatureColumn("input_elements", "of one sample", 1.0),
)
_DEVICE = (
    FeatureColumn("compute_capability", "0 for a CPU", None),
    FeatureColumn("memory_gb", "the device's, GiB", 0.1),
    FeatureColumn("cores", "CUDA or CPU cores", 0.1),
)

PUBLISHED: tuple[FeatureColumn, ...] = (
    *(_published_input(kind) for kind in PUBLISHED_KINDS),
    *_JOB,
    *_DEVICE,
)

COMMON: tuple[FeatureColumn, ...] = (
    *(_published_input(kind) for kind in PUBLISHED_KINDS),
    _JOB[0],
    _JOB[2],
    FeatureColumn("channels_last", "1 for images in NHWC, else 0", None),
    FeatureColumn("loads_data", "1 if a step fetches its samples, else 0", None),
    *_DEVICE,
    FeatureColumn("parameters", "distinct trainable elements", 1.0),
    FeatureColumn("peak_live_bytes", "most bytes of tensors alive", 1.0),
    FeatureColumn("memory_prior_bytes", "context + peak_live_bytes + what kernels take", 1.0),
    FeatureColumn("op_count", "operators in a step", 1.0, OpSum("count")),
    FeatureColumn("unknown_ops", "operators of kind Other", 1.0, OpSum("count", ("Other",))),
    FeatureColumn("largest_input", "of any operator, elements", 1.0, OpMax("input_elements_max")),
    FeatureColumn("flops", "of a step", 1.0, OpSum("flops")),
    FeatureColumn("bytes_moved", "of a step, nothing cached", 1.0, OpSum("bytes_moved")),
    FeatureColumn("bytes_per_op", "mean", 1.0, OpSum("bytes_moved"), denominator=OpSum("count")),
    FeatureColumn(
        "forward_flops", "of the forward pass", 1.0, OpSum("flops", phases=("forward",))
    ),
    *(_group(group, "flops", "flops") for group in ("convolution", "matmul")),
    *(_group(group, "bytes", "bytes_moved") for group in _GROUPS),
    FeatureColumn("peak_flops_per_s", "FLOP/s at the job's precision", 1.0),
    FeatureColumn("memory_bandwidth_bytes_per_s", "of the device", 1.0),
    FeatureColumn("op_overhead_s", "of the device", 1e-9),
    FeatureColumn("share", "fraction of compute given", 1e-3),
    FeatureColumn("roofline_s", "roofline step time", 1e-9),
    FeatureColumn("compute_s", "if memory were free", 1e-9),
    FeatureColumn("memory_s", "if arithmetic were free", 1e-9),
    FeatureColumn("overhead_s", "operators x overhead", 1e-9),
    FeatureColumn(
        "compute_bound_share", "of roofline_s", None,
        "compute_bound_s", denominator="roofline_s_and_least",
    ),
    FeatureColumn(
        "overhead_share", "of roofline_s", None,
        "overhead_s", denominator="roofline_s_and_least",
    ),
)  # fmt: skip

FULL = (*COMMON, *TIME_SHARE_COLUMNS, *MEMORY_COLUMNS)
FEATURE_SETS = {"published": PUBLISHED, "full": FULL}
_PLANS = {name: ColumnPlan(columns) for name, columns in FEATURE_SETS.items()}
TABLE_ROWS = 4096  # training has many more rows, each with its own job


def columns(feature_set: str) -> list[str]:
    """Return the names of a set's columns, in the order of :func:`matrix`."""
    return [column.name for column in FEATURE_SETS[feature_set]]


def matrix(placements: Sequence[Placement] | PlacementTable, feature_set: str = "full") -> Matrix:
    """Return the feature matrix of shape (placements, columns), in the units that columns name.

    A value that cannot be computed (a share of zero, a sum beyond float64) is nan or inf.
    """
    plan = _PLANS[feature_set]
    if isinstance(placements, PlacementTable):
        return plan.matrix(placements)
    if len(placements) <= TABLE_ROWS:
        return plan.matrix(placement_table(placements))
    starts = range(0, len(placements), TABLE_ROWS)
    return np.concatenate([matrix(placements[i : i + TABLE_ROWS], feature_set) for i in starts])


def schema_hash(feature_set: str = "full") -> str:
    """Return the digest of a set's columns and their order; client and release must agree on it."""
    text = "\n".join(f"{c.name} {c.log_offset}" for c in FEATURE_SETS[feature_set])
    return hashlib.sha256(text.encode()).hexdigest()[:16]
