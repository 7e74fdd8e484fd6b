"""Space of jobs: feature vectors and distances that a measurement plan covers."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from presage.features.device.device import Device
from presage.features.graph.op_graph import OpGraph, OpNode
from presage.features.graph.op_kinds import OP_KINDS
from presage.features.job.job_description import PRECISIONS
from presage.pipelines.profiling.zoo import FAMILIES, JobConfig
from presage.system.arrays import Array

# Distances in octaves of size that equal a different precision, a different family, and bytes that
# are all moved by operators of another kind.
PRECISION_OCTAVES, FAMILY_OCTAVES, KIND_OCTAVES = 2.0, 4.0, 6.0


def job_vector(
    config: JobConfig, nodes: Iterable[OpNode], *, parameters: int, peak_live_bytes: int
) -> Array:
    """Return sizes in octaves, bytes by kind of operator, the precision and the family."""
    nodes = tuple(nodes)
    flops = sum(node.count * node.flops for node in nodes)
    moved = sum(node.count * node.bytes_moved for node in nodes)
    sizes = [
        math.log2(1 + size)
        for size in (
            flops,
            moved,
            sum(node.count for node in nodes),
            parameters,
            peak_live_bytes,
            config.batch_size,
        )
    ]
    kinds = dict.fromkeys(OP_KINDS, 0.0)
    for node in nodes:
        kinds[node.kind] += KIND_OCTAVES * node.count * node.bytes_moved / max(1, moved)
    precision = [PRECISION_OCTAVES * (config.precision == name) for name in PRECISIONS]
    family = [FAMILY_OCTAVES * (config.family == name) for name in FAMILIES]
    return np.array([*sizes, *kinds.values(), *precision, *family])


def run_seconds(graph: OpGraph, device: Device, precision: str) -> float:
    """Return the approximate time of a solo measurement: start, and a window of steps."""
    nodes = graph.nodes
    flops = sum(node.count * node.flops for node in nodes)
    moved = sum(node.count * node.bytes_moved for node in nodes)
    step_s = max(
        flops / device.flops_per_s(precision),
        moved / device.memory_bandwidth_bytes_per_s,
        sum(node.count for node in nodes) * device.op_overhead_s,
    )
    # Kernels reach about a third of the peaks; a window is 12 steps, and at most 6 s.
    return 4.0 + min(6.0, 12 * 3 * step_s)


def distances(left: Array, right: Array) -> Array:
    """Return Euclidean distances, shape (left, right)."""
    out: Array = np.linalg.norm(left[:, None, :] - right[None, :, :], axis=2)
    return out
