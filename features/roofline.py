"""Roofline: the least time a device needs for a job's step, summed operator by operator.

Each operator takes the larger of its compute time and its memory time (Williams, Waterman,
Patterson: Roofline, CACM 2009), plus the device's overhead per operator. Runtime predictors learn
the residual over it, which is what carries them to devices they never saw.
"""

from __future__ import annotations

from dataclasses import dataclass

from presage.features.device import Device, Share
from presage.features.job import JobFeatures
from presage.features.op_kinds import CONVOLUTIONS

# Operators that reach a precision's own peak (tensor cores); the rest run at fp32's.
MATRIX_KINDS = frozenset({"MatMul", *CONVOLUTIONS, "Attention", "Recurrent"})
LEAST_STEP_S = 1e-12


@dataclass(frozen=True, slots=True)
class Roofline:
    """Seconds of one step, and what they are made of."""

    compute_s: float  # if memory were free
    memory_s: float  # if arithmetic were free
    bound_s: float  # sum over operators of the larger of the two
    overhead_s: float  # operators x the device's overhead
    compute_bound_s: float  # the part of bound_s in operators that arithmetic bounds
    row_times: tuple[tuple[float, float], ...]  # compute and memory time of each row of operators

    @property
    def step_s(self) -> float:
        """The roofline step time."""
        return max(self.bound_s + self.overhead_s, LEAST_STEP_S)


def roofline(features: JobFeatures, device: Device, share: Share) -> Roofline:
    """Roofline of one step of a job on a share of a device, in seconds.

    A share scales arithmetic and bandwidth alike: right for time-slices, quotas and MIG, too
    low a bandwidth for MPS, which leaves it whole. The residual learns the difference.
    """
    matrix_rate = device.flops_per_s(features.job.precision) * share.fraction
    vector_rate = device.flops_per_s("fp32") * share.fraction
    bandwidth = device.memory_bandwidth_bytes_per_s * share.fraction
    compute_s = memory_s = bound_s = compute_bound_s = 0.0
    count, row_times = 0, []
    for row in features.op_stats:
        rate = matrix_rate if row.kind in MATRIX_KINDS else vector_rate
        row_compute_s, row_memory_s = row.flops / rate, row.bytes_moved / bandwidth
        row_times.append((row_compute_s, row_memory_s))
        compute_s += row_compute_s
        memory_s += row_memory_s
        bound_s += max(row_compute_s, row_memory_s)
        if row_compute_s > row_memory_s:
            compute_bound_s += row_compute_s
        count += row.count
    overhead_s = count * device.op_overhead_s
    return Roofline(compute_s, memory_s, bound_s, overhead_s, compute_bound_s, tuple(row_times))
