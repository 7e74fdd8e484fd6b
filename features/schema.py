"""Feature sets: what each column means and how it is computed from a job, a device and a share.

``published`` is exactly the source document's set (requirements F1-F3). ``full`` holds what a
roofline needs (``COMMON``), what a step's time is mixed from and what holds a job's memory; each
predictor reads a part of it (``models/targets.py``). A column also says how its predictor should
look at it: most are scales, so they are taken to the logarithm inside the model, in the one place
that training and serving share.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from presage.features.facts import Facts, FeatureColumn
from presage.features.holders import HOLDERS
from presage.features.mixture import MIXTURE
from presage.features.op_kinds import CONVOLUTIONS, PUBLISHED_KINDS
from presage.features.placement import Placement

Matrix = np.ndarray[Any, np.dtype[np.float64]]

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

    def compute(facts: Facts) -> float:
        return float(max(facts.kind_input_max.get(kind, 0) for kind in kinds))

    return FeatureColumn(
        f"{kind}.input_elements_max", f"largest input of any {kind}, 0 if absent", 1.0, compute
    )


def _group(group: str, what: str) -> FeatureColumn:
    def flops(facts: Facts) -> float:
        return sum(facts.kind_flops.get(kind, 0.0) for kind in _GROUPS[group])

    def bytes_moved(facts: Facts) -> float:
        return sum(facts.kind_bytes.get(kind, 0.0) for kind in _GROUPS[group])

    compute = flops if what == "flops" else bytes_moved
    return FeatureColumn(f"{group}_{what}", f"{what} of {', '.join(_GROUPS[group])}", 1.0, compute)


_JOB = (
    FeatureColumn("batch_size", "samples a step", 1.0, lambda f: f.job.job.batch_size),
    FeatureColumn("iterations", "steps of the job", 1.0, lambda f: f.job.job.iterations),
    FeatureColumn("input_elements", "of one sample", 1.0, lambda f: f.job.job.input_elements),
)
_DEVICE = (
    FeatureColumn("compute_capability", "0 for a CPU", None, lambda f: f.device.compute_capability),
    FeatureColumn("memory_gb", "the device's, GiB", 0.1, lambda f: f.device.memory_bytes / 2**30),
    FeatureColumn("cores", "CUDA or CPU cores", 0.1, lambda f: f.device.cores),
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
    FeatureColumn(
        "channels_last", "1 for images in NHWC, else 0", None,
        lambda f: float(f.job.job.memory_format == "channels-last"),
    ),
    FeatureColumn(
        "loads_data", "1 if a step fetches its samples, else 0", None,
        lambda f: float(f.job.job.loads_data),
    ),
    *_DEVICE,
    FeatureColumn("parameters", "distinct trainable elements", 1.0, lambda f: f.job.parameters),
    FeatureColumn(
        "peak_live_bytes", "most bytes of tensors alive", 1.0, lambda f: f.job.peak_live_bytes
    ),
    FeatureColumn(
        "memory_prior_bytes", "context + peak_live_bytes + what kernels take", 1.0,
        lambda f: f.memory_prior_bytes,
    ),
    FeatureColumn("op_count", "operators in a step", 1.0, lambda f: f.count),
    FeatureColumn("unknown_ops", "operators of kind Other", 1.0, lambda f: f.unknown_ops),
    FeatureColumn("largest_input", "of any operator, elements", 1.0, lambda f: f.largest_input),
    FeatureColumn("flops", "of a step", 1.0, lambda f: f.flops),
    FeatureColumn("bytes_moved", "of a step, nothing cached", 1.0, lambda f: f.bytes_moved),
    FeatureColumn("bytes_per_op", "mean", 1.0, lambda f: f.bytes_moved / f.count),
    FeatureColumn(
        "forward_flops", "of the forward pass", 1.0, lambda f: f.phase_flops.get("forward", 0.0)
    ),
    *(_group(group, "flops") for group in ("convolution", "matmul")),
    *(_group(group, "bytes") for group in _GROUPS),
    FeatureColumn(
        "peak_flops_per_s", "FLOP/s at the job's precision", 1.0,
        lambda f: f.device.flops_per_s(f.job.job.precision),
    ),
    FeatureColumn(
        "memory_bandwidth_bytes_per_s", "of the device", 1.0,
        lambda f: f.device.memory_bandwidth_bytes_per_s,
    ),
    FeatureColumn("op_overhead_s", "of the device", 1e-9, lambda f: f.device.op_overhead_s),
    FeatureColumn("share", "fraction of compute given", 1e-3, lambda f: f.share.fraction),
    FeatureColumn("roofline_s", "roofline step time", 1e-9, lambda f: f.roofline.step_s),
    FeatureColumn("compute_s", "if memory were free", 1e-9, lambda f: f.roofline.compute_s),
    FeatureColumn("memory_s", "if arithmetic were free", 1e-9, lambda f: f.roofline.memory_s),
    FeatureColumn("overhead_s", "operators x overhead", 1e-9, lambda f: f.roofline.overhead_s),
    FeatureColumn(
        "compute_bound_share", "of roofline_s", None,
        lambda f: f.roofline.compute_bound_s / (f.roofline.step_s + 1e-12),
    ),
    FeatureColumn(
        "overhead_share", "of roofline_s", None,
        lambda f: f.roofline.overhead_s / (f.roofline.step_s + 1e-12),
    ),
)  # fmt: skip

FULL = (*COMMON, *MIXTURE, *HOLDERS)
FEATURE_SETS = {"published": PUBLISHED, "full": FULL}


def columns(feature_set: str) -> list[str]:
    """Names of a set's columns, in the order of :func:`matrix`."""
    return [column.name for column in FEATURE_SETS[feature_set]]


def matrix(placements: Sequence[Placement], feature_set: str = "full") -> Matrix:
    """Feature matrix of shape (placements, columns), in the units the columns name."""
    definition = FEATURE_SETS[feature_set]
    out = np.empty((len(placements), len(definition)), dtype=np.float64)
    for row, placement in enumerate(placements):
        facts = Facts(placement)
        out[row] = [column.compute(facts) for column in definition]
    return out


def schema_hash(feature_set: str = "full") -> str:
    """Digest of a set's columns and their order; client and release must agree on it."""
    text = "\n".join(f"{c.name} {c.log_offset}" for c in FEATURE_SETS[feature_set])
    return hashlib.sha256(text.encode()).hexdigest()[:16]
