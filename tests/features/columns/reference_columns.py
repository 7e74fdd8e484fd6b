"""Reference implementation of the columns, one operator after another."""

from __future__ import annotations

import math
from bisect import bisect
from collections import defaultdict
from dataclasses import asdict

from presage.features.columns.column import FeatureColumn, OpSum, Quantity
from presage.features.graph.op_stats import OpStats
from presage.features.graph.roofline import MATRIX_KINDS
from presage.features.graph.shape_class import PRODUCTS, SUM_LENGTH_CLASSES, classify_by_sum
from presage.features.job.framework_version import framework_release
from presage.features.placement import Placement

HALF = ("fp16", "bf16")
SUMMED = ("bucket_s.", "misfit_s.", "kernel_bytes.")  # 0 where a job has no such operator


def plain_row(placement: Placement, columns: tuple[FeatureColumn, ...]) -> list[float]:
    """Return the values of the columns; at least one must be a number other than 0."""
    named = _named(placement)

    def value(quantity: Quantity) -> float:
        if isinstance(quantity, str):
            return named.get(quantity, 0) if quantity.startswith(SUMMED) else named[quantity]
        found = [
            getattr(op, quantity.value)
            for op in placement.job.op_stats
            if op.kind in quantity.kinds and op.phase in quantity.phases
        ]
        return math.fsum(found) if isinstance(quantity, OpSum) else max(found, default=0)

    return [
        value(c.numerator or c.name) / max(value(c.denominator), c.min_denominator) for c in columns
    ]


def _named(placement: Placement) -> dict[str, float]:
    features, job, device = placement.job, placement.job.job, placement.device
    release = framework_release(job.framework_version)
    channels_last = job.memory_format == "channels-last"
    loading_s = 5e-6 * job.batch_size + 1e-9 * features.memory.batch_bytes
    return {
        "one": 1,
        "batch_size": job.batch_size,
        "iterations": job.iterations,
        "input_elements": job.input_elements,
        "half_precision": job.precision in HALF,
        "tf32": job.precision == "tf32",
        "fp64": job.precision == "fp64",
        "channels_last": channels_last,
        "framework_release": release,
        "channels_last_release": release if channels_last else 0,
        "loads_data": job.loads_data,
        "loading_s": loading_s if job.loads_data else 0,
        "parameters": features.parameters,
        **asdict(features.memory),
        "peak_live_bytes": features.peak_live_bytes,
        "compute_capability": device.compute_capability,
        "memory_gb": device.memory_bytes / 2**30,
        "cores": device.cores,
        "peak_flops_per_s": device.flops_per_s(job.precision),
        "memory_bandwidth_bytes_per_s": device.memory_bandwidth_bytes_per_s,
        "op_overhead_s": device.op_overhead_s,
        "context_bytes": device.context_bytes,
        "share": placement.share.fraction,
        **_memory(placement),
        **_times(placement),
    }


def _memory(placement: Placement) -> dict[str, float]:
    element_bytes = {"fp16": 2, "bf16": 2, "fp64": 8}.get(placement.job.job.precision, 4)
    taken: dict[str, float] = defaultdict(float)
    for op in placement.job.op_stats:
        if (op.kind == "MatMul" or op.kind.endswith("Conv2D")) and op.phase != "optimizer":
            key = f"kernel_bytes.{op.kind}.{op.phase}"
            taken[key] = max(taken[key], 0.05 * element_bytes * op.input_elements_max)
    total = math.fsum(taken.values())
    prior = placement.device.context_bytes + placement.job.peak_live_bytes + total
    taken["memory_prior_bytes"] = prior
    return taken


def _times(placement: Placement) -> dict[str, float]:
    device, fraction = placement.device, placement.share.fraction
    bandwidth = device.memory_bandwidth_bytes_per_s * fraction
    out: dict[str, float] = defaultdict(float)
    for op in placement.job.op_stats:
        precision = placement.job.job.precision if op.kind in MATRIX_KINDS else "fp32"
        compute_s = op.flops / (device.flops_per_s(precision) * fraction)
        memory_s = op.bytes_moved / bandwidth
        bound_s = max(compute_s, memory_s)
        ratio = (compute_s + 1e-9) / (memory_s + 1e-9)
        out["compute_s"] += compute_s
        out["memory_s"] += memory_s
        out["bound_s"] += bound_s
        out["compute_bound_s"] += compute_s if compute_s > memory_s else 0
        out["log_ratio_s"] += bound_s * math.log(ratio)
        out["overhead_s"] += op.count * device.op_overhead_s
        out[f"bucket_s.{_cell(op, ratio)}"] += bound_s
        out[f"misfit_s.{op.kind} {op.shape}"] += bound_s
    out["roofline_s"] = max(out["bound_s"] + out["overhead_s"], 1e-12)
    out["roofline_s_and_least"] = out["roofline_s"] + 1e-12
    return out


def _cell(op: OpStats, ratio: float) -> str:
    if op.phase == "optimizer":
        return "optimizer"
    if op.kind in PRODUCTS:
        step = bisect([math.exp(-1.5), 1, math.exp(1.5)], ratio)
        return f"{op.kind} {op.phase} {step}"
    if op.kind in SUM_LENGTH_CLASSES:
        passes = 2 if op.phase == "backward" else 1
        length = op.flops / (2 * passes * max(op.output_elements, 1))
        return f"{op.kind} {op.phase} {op.shape or classify_by_sum(op.kind, length)}"
    return f"{op.kind} {op.phase}"
