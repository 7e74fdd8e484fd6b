"""Measurements as rows of the tables in ``features/tables.py``."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from presage.features.device import Device
from presage.features.graph import OpGraph
from presage.pipelines.profiling.measure import MemberResult, RunResult
from presage.pipelines.profiling.plan import colocation_id
from presage.pipelines.profiling.zoo import JobConfig

Row = dict[str, Any]

# A job's length is for schedulers and for the runtime to scale with; what is measured is a step.
ITERATIONS = 1000


@dataclass(frozen=True, slots=True)
class Context:
    """On what, and where, the rows of a campaign are measured.

    ``fraction`` is the share of the device that every job is given: with fewer threads than a
    processor has cores, a part of it.
    """

    device: Device
    fraction: float
    campaign: str
    machine: str
    versions: str

    def provenance(self, measured_at_s: float) -> Row:
        """Columns of a row measured at that Unix time."""
        return {
            "campaign": self.campaign,
            "machine": self.machine,
            "versions": self.versions,
            "measured_at_s": measured_at_s,
        }

    def share(self, whole: str) -> Row:
        """Columns of a job's share; ``whole`` is the mode when it is the whole device."""
        mode = whole if self.fraction == 1.0 else "cpu-quota"
        return {"share": self.fraction, "sharing_mode": mode}


def job_row(config: JobConfig, graph: OpGraph) -> Row:
    """Row of ``jobs``."""
    return {
        "job_id": config.name,
        "name": f"{config.family}/{config.variant}",
        "family": config.family,
        "framework": "torch",
        "precision": config.precision,
        "optimizer": config.optimizer,
        "batch_size": config.batch_size,
        "iterations": ITERATIONS,
        "input_elements": graph.input_elements,
        "graph_digest": graph.digest,
        "parameters": graph.parameters,
        "peak_live_bytes": graph.peak_live_bytes,
    }


def node_rows(graph: OpGraph) -> list[Row]:
    """Rows of ``nodes``."""
    digest = graph.digest
    return [{"graph_digest": digest, **dataclasses.asdict(node)} for node in graph.nodes]


def device_row(device: Device, context: Context, measured_at_s: float) -> Row:
    """Row of ``devices``."""
    peaks = sorted(device.peak_flops_per_s.items())
    return {
        "device_kind": device.kind,
        "compute_capability": device.compute_capability,
        "memory_bytes": device.memory_bytes,
        "cores": device.cores,
        "precisions": [name for name, _ in peaks],
        "peak_flops_per_s": [flops for _, flops in peaks],
        "memory_bandwidth_bytes_per_s": device.memory_bandwidth_bytes_per_s,
        "op_overhead_s": device.op_overhead_s,
        "context_bytes": device.context_bytes,
        **context.provenance(measured_at_s),
    }


def execution_row(result: RunResult, context: Context, measured_at_s: float) -> Row:
    """Row of ``executions`` for a job that ran alone."""
    (member,) = result.members
    peak = member.memory_peak_bytes
    return {
        "job_id": member.job,
        "device_kind": context.device.kind,
        **context.share("exclusive"),
        "steps": member.steps,
        "step_time_median_s": member.step_time_median_s,
        "step_time_p90_s": member.step_time_p90_s,
        "compute_utilization": member.compute_utilization,
        "memory_utilization": None if peak is None else peak / context.device.memory_bytes,
        "memory_peak_bytes": peak,
        "setup_s": member.setup_s,
        "foreign_load": result.foreign_load,
        "failure": member.failure,
        **context.provenance(measured_at_s),
    }


def colocation_rows(
    result: RunResult,
    solo_step_time_s: Mapping[str, float],
    context: Context,
    measured_at_s: float,
) -> list[Row]:
    """Rows of ``colocations``, one per member; if one failed, none has a step time.

    A member's share is what it was given alone, too: time-slicing gives none a part of its own.
    """
    jobs = [member.job for member in result.members]
    shared = {
        "colocation_id": colocation_id(jobs, context.device.kind),
        "members": len(jobs),
        "device_kind": context.device.kind,
        **context.share("time-slice"),
        "foreign_load": result.foreign_load,
        "fits": all(member.failure != "out-of-memory" for member in result.members),
        **context.provenance(measured_at_s),
    }
    return [
        shared | _member_columns(position, member, solo_step_time_s[member.job], result.failed)
        for position, member in enumerate(_in_order(result.members))
    ]


def _in_order(members: Sequence[MemberResult]) -> list[MemberResult]:
    return sorted(members, key=lambda member: member.job)


def _member_columns(position: int, member: MemberResult, solo_s: float, failed: bool) -> Row:
    together_s = None if failed else member.step_time_median_s
    solo_s = member.solo_step_time_s or solo_s
    return {
        "member": position,
        "job_id": member.job,
        "steps": 0 if failed else member.steps,
        "step_time_median_s": together_s,
        "solo_step_time_s": solo_s,
        "slowdown": None if together_s is None else together_s / solo_s,
        "failure": member.failure,
    }
