"""A job's memory as a sum: the device's context, what the trace saw alive, what kernels take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, fields

import numpy as np

from presage.features.memory import MemoryEstimate
from presage.features.parts import Array, Integers, Parts, padded
from presage.features.schema import Placement

# Kernels that take memory for themselves, which no tensor shows, by the largest input they read.
_HUNGRY = ("Conv2D", "PointwiseConv2D", "GroupedConv2D", "DepthwiseConv2D", "MatMul")
_PHASES = ("forward", "backward")
MEMORY_UNITS = (
    "device context",
    *(field.name.removesuffix("_bytes") for field in fields(MemoryEstimate)),
    *(f"largest {kind} {phase}" for kind in _HUNGRY for phase in _PHASES),
)
MEMORY_FEATURES = ("log GiB", "log share of the job's memory")
SHARED_BY = (
    "AddV2", "Mul", "Conv2D", "PointwiseConv2D", "GroupedConv2D", "DepthwiseConv2D", "Softmax",
    "Relu", "MatMul", "Attention", "Normalization", "Elementwise", "Copy",
)  # fmt: skip
MEMORY_CONTEXT = (
    "log batch size", "log live GiB", "log share of parameters", "log share of activations",
    "log share of workspace", "log operators", "half precision", "trains",
    *(f"log share of bytes moved by {kind}" for kind in SHARED_BY),
)  # fmt: skip
GIB = 2.0**30
WORKSPACE_OF_INPUT = 0.05  # about what a kernel takes, of its input
LEAST = 1e-3  # of a share, before its logarithm


def memory_parts(placements: Sequence[Placement]) -> Parts:
    """What holds a job's bytes, in GiB."""
    return padded([_rows(one) for one in placements], [_context(one) for one in placements])


def _rows(placement: Placement) -> tuple[Integers, Array, Array]:
    """Units, GiB and features of one job's parts."""
    held = [placement.device.context_bytes, *astuple(placement.job.memory)]
    largest = dict.fromkeys(((kind, phase) for kind in _HUNGRY for phase in _PHASES), 0)
    for row in placement.job.op_stats:
        key = (row.kind, row.phase)
        if key in largest:
            largest[key] = max(largest[key], row.input_elements_max)
    element_bytes = _element_bytes(placement.job.job.precision)
    taken = [WORKSPACE_OF_INPUT * element_bytes * count for count in largest.values()]
    gib = np.array([*held, *taken]) / GIB
    features = np.stack([np.log(gib + 1e-4), np.log(gib / gib.sum() + LEAST)], axis=1)
    return np.arange(len(gib)), gib, features


def _context(placement: Placement) -> Array:
    job, stats = placement.job, placement.job.op_stats
    peak = max(job.peak_live_bytes, 1)
    shares = (job.memory.parameter_bytes, job.memory.activation_bytes, job.memory.workspace_bytes)
    moved = dict.fromkeys(SHARED_BY, 0.0)
    for row in stats:
        if row.kind in moved:
            moved[row.kind] += row.bytes_moved
    total = max(sum(row.bytes_moved for row in stats), 1.0)
    return np.array(
        [
            np.log(job.job.batch_size),
            np.log(peak / GIB),
            *(np.log(share / peak + LEAST) for share in shares),
            np.log(sum(row.count for row in stats)),
            float(job.job.precision in ("fp16", "bf16")),
            float(any(row.phase == "backward" for row in stats)),
            *(np.log(value / total + LEAST) for value in moved.values()),
        ]
    )


def _element_bytes(precision: str) -> int:
    return {"fp16": 2, "bf16": 2, "fp64": 8}.get(precision, 4)
