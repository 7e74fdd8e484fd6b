"""Small domain values for several tests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from presage.features.columns.schema import columns, matrix
from presage.features.device.device import Device
from presage.features.graph.op_graph import OpNode
from presage.features.graph.op_stats import OpStats, summarize
from presage.features.graph.operator_buckets import OPERATOR_BUCKETS, bucket_positions
from presage.features.graph.step_memory import MemoryEstimate
from presage.features.job.job_description import Job, JobFeatures
from presage.features.job.job_table import job_table
from presage.features.placement import Placement


def node(kind: str = "MatMul", **changes: Any) -> OpNode:
    values: dict[str, Any] = {
        "op": f"test.{kind}",
        "kind": kind,
        "phase": "forward",
        "input_elements": 100,
        "output_elements": 50,
        "parameters": 0,
        "flops": 1_000_000,
        "bytes_moved": 10_000,
    }
    return OpNode(**(values | changes))


def job(**changes: Any) -> Job:
    values: dict[str, Any] = {
        "job_id": "a job",
        "name": "model",
        "family": "family",
        "framework": "torch",
        "precision": "fp32",
        "batch_size": 32,
        "iterations": 100,
        "input_elements": 784,
    }
    return Job(**(values | changes))


def memory(**changes: Any) -> MemoryEstimate:
    """Return a memory estimate with a peak of one MiB."""
    values = {
        "parameter_bytes": 4000,
        "gradient_bytes": 4000,
        "optimizer_state_bytes": 8000,
        "activation_bytes": 1_000_000,
        "workspace_bytes": 35_576,
        "batch_bytes": 1000,
    }
    return MemoryEstimate(**(values | changes))


def features(*nodes: OpNode, **changes: Any) -> JobFeatures:
    return JobFeatures(
        job(**changes), summarize(nodes or (node(),)), parameters=1000, memory=memory()
    )


def column(name: str, placement: Placement) -> float:
    """Return one column of the full feature set."""
    return float(matrix([placement])[0, columns("full").index(name)])


def cell_of(row: OpStats, ratio: float = 1.0) -> str:
    """Return the bucket of an operator with this ratio of compute time to memory time."""
    op_classes = job_table([replace(features(), op_stats=(row,))]).op_classes
    cell = int(bucket_positions(op_classes, np.array([ratio]))[0])
    return OPERATOR_BUCKETS[cell]


def device(**changes: Any) -> Device:
    """Return the example {7, 32, 2880}: capability, memory in GB, cores (requirement F3)."""
    values: dict[str, Any] = {
        "kind": "example",
        "compute_capability": 7.0,
        "memory_bytes": 32 << 30,
        "cores": 2880,
        "peak_flops_per_s": {"fp32": 1e12, "fp16": 8e12},
        "memory_bandwidth_bytes_per_s": 1e11,
        "op_overhead_s": 1e-5,
        "context_bytes": 1 << 28,
    }
    return Device(**(values | changes))
