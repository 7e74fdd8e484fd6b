"""Conversion of measurements to rows of the tables in ``features/tables/schemas.py``."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from presage.features.device.device import Device, Share
from presage.features.graph.op_graph import OpGraph
from presage.pipelines.profiling.running.run_results import MemberResult, RunResult
from presage.pipelines.profiling.running.training_step import INFERENCE
from presage.pipelines.profiling.running.work import Row, Work, colocation_id
from presage.pipelines.profiling.zoo import JobConfig

# Number of steps of a job, for schedulers and for scaling the runtime; a single step is measured.
ITERATIONS = 1000


@dataclass(frozen=True, slots=True)
class Context:
    """Device, campaign and machine of the measured rows."""

    device: Device
    campaign: str
    machine: str
    versions: str

    def provenance(self, measured_at_s: float) -> Row:
        """Return the provenance columns of a row measured at that Unix time."""
        return {
            "campaign": self.campaign,
            "machine": self.machine,
            "versions": self.versions,
            "measured_at_s": measured_at_s,
        }


def job_row(config: JobConfig, graph: OpGraph) -> Row:
    """Return a row of ``jobs``."""
    return {
        "job_id": config.name,
        "name": config.model,
        "family": config.family,
        "framework": "torch",
        "precision": config.precision,
        "optimizer": "" if config.optimizer == INFERENCE else config.optimizer,
        "batch_size": config.batch_size,
        "iterations": ITERATIONS,
        **graph_columns(graph),
    }


def graph_columns(graph: OpGraph) -> Row:
    """Return the columns of ``jobs`` that a graph determines."""
    return {
        "graph_digest": graph.digest,
        "input_elements": graph.input_elements,
        "parameters": graph.parameters,
        "peak_live_bytes": graph.peak_live_bytes,
        **dataclasses.asdict(graph.memory),
    }


def node_rows(graph: OpGraph) -> list[Row]:
    """Return rows of ``nodes``."""
    digest = graph.digest
    return [{"graph_digest": digest, **dataclasses.asdict(node)} for node in graph.nodes]


def device_row(device: Device, context: Context, measured_at_s: float) -> Row:
    """Return a row of ``devices``."""
    return device_columns(device) | context.provenance(measured_at_s)


def device_columns(device: Device) -> Row:
    """Return the columns of ``devices`` that a device determines."""
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
    }


def execution_row(result: RunResult, share: Share, context: Context, measured_at_s: float) -> Row:
    """Return a row of ``executions`` for a job that ran solo."""
    (member,) = result.members
    peak = member.memory_peak_bytes
    return {
        "job_id": member.job,
        "device_kind": context.device.kind,
        "share": share.fraction,
        "sharing_mode": share.mode,
        "steps": member.steps,
        "step_time_median_s": member.step_time_median_s,
        "step_time_p90_s": member.step_time_p90_s,
        "compute_utilization": member.compute_utilization,
        "memory_utilization": None if peak is None else peak / context.device.memory_bytes,
        "memory_peak_bytes": peak,
        "setup_s": member.setup_s,
        "foreign_load": result.foreign_load,
        "failure": member.failure,
        "memory_allocated_peak_bytes": member.memory_allocated_peak_bytes,
        "memory_reserved_peak_bytes": member.memory_reserved_peak_bytes,
        "sm_activity": result.sample.sm_activity,
        "sm_occupancy": result.sample.sm_occupancy,
        "power_w": result.sample.power_w,
        "sm_clock_mhz": result.sample.sm_clock_mhz,
        **context.provenance(measured_at_s),
    }


def colocation_rows(
    result: RunResult, work: Work, context: Context, measured_at_s: float
) -> list[Row]:
    """Return rows of ``colocations``, one per member; if one failed, none has a step time.

    A member's share is also that of its solo run: time-slicing does not divide the device.
    """
    device = context.device.kind
    shared = {
        "colocation_id": colocation_id(work.jobs, device, work.shares),
        "members": len(work.jobs),
        "device_kind": device,
        "foreign_load": result.foreign_load,
        "fits": all(member.failure != "out-of-memory" for member in result.members),
        "device_utilization": None if result.failed else _device_utilization(result),
        "power_w": result.sample.power_w,
        **context.provenance(measured_at_s),
    }
    return [
        shared | _member_columns(position, member, share, solo_s, result.failed)
        for position, (member, share, solo_s) in enumerate(
            zip(result.members, work.shares, work.solo_s, strict=True)
        )
    ]


def _device_utilization(result: RunResult) -> float | None:
    """Return the driver's figure on a GPU; on a processor, the sum over the members."""
    if result.sample.compute_utilization is not None:
        return result.sample.compute_utilization
    own = [member.compute_utilization for member in result.members]
    return sum(u for u in own if u is not None) if None not in own else None


def _member_columns(
    position: int, member: MemberResult, share: Share, solo_s: float, failed: bool
) -> Row:
    together_s = None if failed else member.step_time_median_s
    solo_s = member.solo_step_time_s or solo_s
    return {
        "member": position,
        "job_id": member.job,
        "share": share.fraction,
        "sharing_mode": share.mode,
        "steps": 0 if failed else member.steps,
        "step_time_median_s": together_s,
        "solo_step_time_s": solo_s,
        "slowdown": None if together_s is None else together_s / solo_s,
        "failure": member.failure,
    }
