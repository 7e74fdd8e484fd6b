"""A step's time as a sum: its operators by kind, phase and intensity, and what the host adds."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from presage.features.graph import PHASES
from presage.features.job import JobFeatures
from presage.features.op_kinds import OP_KINDS
from presage.features.op_stats import OpStats
from presage.features.parts import Array, Integers, Parts, padded
from presage.features.roofline import MATRIX_KINDS
from presage.features.schema import Placement

# What the host adds: the launch of each operator, a step's own cost, and where samples are loaded,
# each one's and each byte's.
HOST_UNITS = ("launch", "step", "sample", "byte")
TIME_UNITS = (*(f"{kind} {phase}" for phase in PHASES for kind in OP_KINDS), *HOST_UNITS)
TIME_FEATURES = (
    "log flops", "log bytes", "log input elements", "log output elements", "log parameters",
    "log compute time / memory time", "log operators", "log elements of a product's sum",
    "log columns of a product", "log rows of a product", "log time", "log share of the step's time",
)  # fmt: skip
CONTEXT = (
    "channels last", "framework release", "channels last times release", "log batch size",
    "half precision", "tf32", "fp64", "trains", "loads data", "log share of the device",
    "compute capability", "log FLOP per byte of matrices", "log FLOP per byte",
)  # fmt: skip
# About what a step costs besides its operators, and a sample and a byte of it that are loaded.
STEP_S, SAMPLE_S, BYTE_S = 1e-3, 5e-6, 1e-9
LEAST_LAUNCH_S = 1e-7
RELEASES_OF_TORCH_1 = 14  # 1.13 was followed by 2.0
NEWEST_RELEASE = 23.0  # 2.9's, taken where none is told


def time_parts(placements: Sequence[Placement]) -> Parts:
    """Operators of each step by kind, phase and octave of intensity, and what the host adds."""
    return padded([_rows(one) for one in placements], [_context(one) for one in placements])


def _rows(placement: Placement) -> tuple[Integers, Array, Array]:
    """Units, seconds and features of one step's parts."""
    job, device, share = placement.job, placement.device, placement.share.fraction
    stats = job.op_stats
    is_matrix = np.array([row.kind in MATRIX_KINDS for row in stats])
    rate = np.where(is_matrix, device.flops_per_s(job.job.precision), device.flops_per_s("fp32"))
    count = np.array([row.count for row in stats], dtype=np.float64)
    flops = np.array([row.flops for row in stats])
    bytes_moved = np.array([row.bytes_moved for row in stats])
    compute_s = flops / (rate * share)
    memory_s = bytes_moved / (device.memory_bandwidth_bytes_per_s * share)
    seconds = np.maximum(compute_s, memory_s)
    given, written, own = (
        np.array([getattr(row, name) for row in stats], dtype=np.float64) / count
        for name in ("input_elements", "output_elements", "parameters")
    )
    summed = _log(flops / count / np.maximum(2 * written, 1))
    columns = _log(own) - summed
    features = np.stack(
        [
            _log(flops / count), _log(bytes_moved / count), _log(given), _log(written), _log(own),
            np.log((compute_s / count + 1e-9) / (memory_s / count + 1e-9)), _log(count),
            summed, columns, _log(written) - columns, np.log(seconds / count + 1e-9),
            np.log(seconds / max(seconds.sum(), 1e-12) + 1e-3),
        ],
        axis=1,
    )  # fmt: skip
    host = np.array(
        [
            count.sum() * max(device.op_overhead_s, LEAST_LAUNCH_S), STEP_S,
            *loading_s(job),
        ]
    )  # fmt: skip
    first = len(TIME_UNITS) - len(host)
    units = [*(_unit(row) for row in stats), *range(first, len(TIME_UNITS))]
    nothing = np.zeros((len(host), features.shape[1]))
    return np.array(units), np.concatenate([seconds, host]), np.concatenate([features, nothing])


def loading_s(job: JobFeatures) -> tuple[float, float]:
    """About what a step's samples and their bytes take to load, in seconds."""
    loads = job.job.loads_data
    return loads * job.job.batch_size * SAMPLE_S, loads * job.memory.batch_bytes * BYTE_S


def _unit(row: OpStats) -> int:
    return PHASES.index(row.phase) * len(OP_KINDS) + OP_KINDS.index(row.kind)


def _context(placement: Placement) -> Array:
    job, device = placement.job.job, placement.device
    bandwidth = device.memory_bandwidth_bytes_per_s
    is_nhwc = float(job.memory_format == "channels-last")
    release = framework_release(job.framework_version)
    columns = [
        is_nhwc,
        release,
        is_nhwc * release,
        float(np.log(job.batch_size)),
        float(job.precision in ("fp16", "bf16")),
        float(job.precision == "tf32"),
        float(job.precision == "fp64"),
        float(any(row.phase == "backward" for row in placement.job.op_stats)),
        float(job.loads_data),
        float(np.log(placement.share.fraction)),
        device.compute_capability,
        float(np.log(device.flops_per_s(job.precision) / bandwidth)),
        float(np.log(device.flops_per_s("fp32") / bandwidth)),
    ]
    return np.array(columns)


def framework_release(version: str) -> float:
    """Releases of torch since 1.0: "1.12" is 12, "2.1" is 15; 2.0 follows 1.13."""
    match = re.match(r"(\d+)\.(\d+)", version)
    if match is None:
        return NEWEST_RELEASE
    return float(int(match[2]) + RELEASES_OF_TORCH_1 * (int(match[1]) - 1))


def _log(values: Array) -> Array:
    return np.log(np.maximum(values, 1))
