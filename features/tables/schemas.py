"""Measured tables: one pyarrow schema each, checked whenever a table is read or written.

Times are in seconds, sizes in bytes, shares are fractions of one. Every measured row names its
origin: source and licence, campaign, machine, versions, time.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from presage.features.quantities.quantity_registry import solo_columns
from presage.features.tables.checked_table import (
    Column,
    Constraint,
    Table,
    check,
    column,
    from_frame,
    from_rows,
    read,
    write,
)

__all__ = [
    "Column", "Constraint", "Table", "check", "column", "from_frame", "from_rows", "read", "write",
]  # fmt: skip

_TEXT, _INT, _FLOAT, _BOOL = pa.string(), pa.int64(), pa.float64(), pa.bool_()

SLOWDOWN_ROUNDING = 1e-6  # relative

# Values of `source` and `licence` in rows that `presage profile` measured.
OUR_SOURCE, OUR_LICENCE = "presage profile", "Apache-2.0"
# Values in rows of jobs that clients reported to a server.
REPORTED_SOURCE, REPORTED_LICENCE = "presage outcomes", "none"


def _required_on_success(column: str) -> Constraint:
    """Constrain rows of our own campaigns; published sources rarely contain every value."""

    def broken(data: pa.Table) -> pa.ChunkedArray:
        ran = pc.equal(data.column("failure"), "")
        ours = pc.equal(data.column("source"), OUR_SOURCE)
        return pc.and_(pc.and_(ran, ours), pc.is_null(data.column(column)))

    return Constraint(column, "must hold a value where failure is ''", broken)


def _lacks_utilization(data: pa.Table) -> pa.ChunkedArray:
    """Mark processor rows without utilization; a GPU's driver may not report it."""
    empty = _required_on_success("compute_utilization").broken(data)
    return pc.and_(empty, pc.starts_with(data.column("device_kind"), "cpu-"))


def _has_no_measurement(data: pa.Table) -> pa.ChunkedArray:
    empty = pc.equal(data.column("failure"), "")
    for name in filter(data.column_names.__contains__, solo_columns()):
        empty = pc.and_(empty, pc.is_null(data.column(name)))
    return empty


def _required_with_slowdown(column: str) -> Constraint:
    def broken(data: pa.Table) -> pa.ChunkedArray:
        return pc.and_(pc.is_valid(data.column("slowdown")), pc.is_null(data.column(column)))

    return Constraint(column, "must hold a value where slowdown does", broken)


def _required_with_graph(column: str) -> Constraint:
    def broken(data: pa.Table) -> pa.ChunkedArray:
        traced = pc.not_equal(data.column("graph_digest"), "")
        return pc.and_(traced, pc.is_null(data.column(column)))

    return Constraint(column, "must hold a value where graph_digest does", broken)


def _is_not_ratio(data: pa.Table) -> pa.ChunkedArray:
    slowdown = data.column("slowdown")
    ratio = pc.divide(data.column("step_time_median_s"), data.column("solo_step_time_s"))
    return pc.greater(pc.abs(pc.subtract(slowdown, ratio)), pc.multiply(ratio, SLOWDOWN_ROUNDING))


def _differ_in_length(data: pa.Table) -> pa.ChunkedArray:
    counts = (
        pc.list_value_length(data.column(name)) for name in ("precisions", "peak_flops_per_s")
    )
    return pc.not_equal(*counts)


def _optional(name: str, type_: pa.DataType, meaning: str) -> Column:
    """Return a column >= 0 that only some devices or sources have, and older files lack."""
    return Column(name, type_, meaning, minimum=0, nullable=True, absent=None)


_PROVENANCE = (
    Column("campaign", _TEXT, "name of the campaign that measured this row"),
    Column(
        "machine",
        _TEXT,
        "digest of the machine (processor, memory, kernel) that measured it; or the source's name",
    ),
    Column("versions", _TEXT, "framework and driver versions, as 'name=version' words"),
    Column(
        "measured_at_s",
        _FLOAT,
        "Unix time of the end of the measurement; 0 if the source does not give it",
        minimum=0,
    ),
    Column(
        "source",
        _TEXT,
        f"origin of the measurement: {OUR_SOURCE!r}, or the address of the published file",
        absent=OUR_SOURCE,
    ),
    Column(
        "licence",
        _TEXT,
        "SPDX name of the data's licence; none without one, non-commercial for limited use",
        absent=OUR_LICENCE,
    ),
)

JOBS = Table(
    "jobs",
    ("job_id",),
    (
        Column("job_id", _TEXT, "name of the configuration, equal on every machine"),
        Column("name", _TEXT, "family and variant: the model, for all batch sizes"),
        Column("family", _TEXT, "model family, such as resnet"),
        Column("framework", _TEXT, "torch, onnx, tensorflow"),
        Column("precision", _TEXT, "fp32, tf32, fp16, bf16, fp64"),
        Column(
            "optimizer",
            _TEXT,
            "sgd, adam, adamw, or the source's own; none if no update is made; '' for inference "
            "and for reported jobs",
        ),
        Column("batch_size", _INT, "samples in one step", minimum=1),
        Column("iterations", _INT, "steps of the whole job", minimum=1),
        Column("input_elements", _INT, "elements of one sample", minimum=1),
        Column(
            "memory_format",
            _TEXT,
            "contiguous, or channels-last (NHWC)",
            absent="contiguous",
        ),
        Column(
            "loads_data",
            _BOOL,
            "whether a step loads its samples from disk or host memory; else they are resident",
            absent=False,
        ),
        Column(
            "graph_digest",
            _TEXT,
            "key of the job's graph in `nodes` or `op_stats`; '' if its model is not known",
        ),
        Column("parameters", _INT, "distinct trainable elements", minimum=0, nullable=True),
        Column("peak_live_bytes", _INT, "maximum bytes of tensors alive", minimum=0, nullable=True),
        _optional("parameter_bytes", _INT, "weights and buffers"),
        _optional("gradient_bytes", _INT, "gradients at the end of the backward pass"),
        _optional("optimizer_state_bytes", _INT, "state of the optimizer between steps"),
        _optional("activation_bytes", _INT, "outputs that the backward pass reads"),
        _optional("workspace_bytes", _INT, "what the peak needs beyond the other components"),
        _optional("batch_bytes", _INT, "inputs of a step, and targets if the step reads them"),
    ),
    (_required_with_graph("parameters"), _required_with_graph("peak_live_bytes")),
)

_COST = (
    Column("input_elements", _INT, "elements of its inputs, without parameters", minimum=0),
    Column("output_elements", _INT, "elements of its outputs", minimum=0),
    Column("parameters", _INT, "trainable elements among its inputs", minimum=0),
    Column("flops", _INT, "floating-point operations, a multiply-add counts as two", minimum=0),
    Column("bytes_moved", _INT, "bytes read and written if nothing is cached", minimum=0),
)

NODES = Table(
    "nodes",
    (
        "graph_digest",
        "op",
        "kind",
        "phase",
        "input_elements",
        "output_elements",
        "parameters",
        "flops",
        "bytes_moved",
    ),
    (
        Column("graph_digest", _TEXT, "the graph this operator belongs to"),
        Column("op", _TEXT, "name of the operator in the framework"),
        Column("kind", _TEXT, "row of the op table"),
        Column("phase", _TEXT, "forward, backward, optimizer"),
        *_COST,
        Column("count", _INT, "number of equal operators in the step", minimum=1),
    ),
)

OP_STATS = Table(
    "op_stats",
    ("graph_digest", "kind", "phase", "intensity_octave", "shape"),
    (
        Column("graph_digest", _TEXT, "the graph these operators belong to"),
        Column("kind", _TEXT, "row of the op table"),
        Column("phase", _TEXT, "forward, backward, optimizer"),
        Column("intensity_octave", _INT, "floor(log2(FLOPs per byte))"),
        Column("shape", _TEXT, "shape class; '' without one, or if it is not known"),
        Column("count", _INT, "number of operators", minimum=1),
        Column("input_elements_max", _INT, "input elements of the largest operator", minimum=0),
        Column("input_elements", _INT, "sum over the operators", minimum=0),
        Column("output_elements", _INT, "sum over the operators", minimum=0),
        Column("flops", _FLOAT, "sum over the operators; a multiply-add counts as two", minimum=0),
        Column("bytes_moved", _FLOAT, "bytes read and written if nothing is cached", minimum=0),
        Column("parameters", _INT, "trainable elements read; counted once per reader", minimum=0),
    ),
)

EXECUTIONS = Table(
    "executions",
    ("job_id", "device_kind", "machine", "share", "sharing_mode", "campaign"),
    (
        Column("job_id", _TEXT, "the job that ran"),
        Column("device_kind", _TEXT, "the device it ran on"),
        Column("share", _FLOAT, "fraction of the device's compute allocated to the job", minimum=0),
        Column("sharing_mode", _TEXT, "exclusive, time-slice, mps, mig, cpu-quota"),
        Column("steps", _INT, "steps timed; 0 if the source does not give it", minimum=0),
        Column("step_time_median_s", _FLOAT, "median step", above=0, nullable=True),
        Column("step_time_p90_s", _FLOAT, "90th percentile step", above=0, nullable=True),
        Column(
            "compute_utilization",
            _FLOAT,
            "CPU time / (wall x cores); on a GPU NVML's share of time with a kernel running, "
            "if the driver reports it",
            minimum=0,
            nullable=True,
        ),
        Column(
            "memory_utilization",
            _FLOAT,
            "memory_peak_bytes / the device's memory",
            minimum=0,
            nullable=True,
        ),
        Column(
            "memory_peak_bytes",
            _INT,
            "maximum memory: resident set on a CPU, device memory of the process on a GPU",
            minimum=0,
            nullable=True,
        ),
        Column(
            "setup_s",
            _FLOAT,
            "from process start to the end of the first step",
            minimum=0,
            nullable=True,
        ),
        Column(
            "foreign_load",
            _FLOAT,
            "share of the device used by other processes meanwhile: a measure of noise",
            minimum=0,
            nullable=True,
        ),
        Column("failure", _TEXT, "'' on success, else out-of-memory, crash, timeout, infeasible"),
        _optional(
            "memory_allocated_peak_bytes", _INT, "maximum bytes of tensors, by the allocator"
        ),
        _optional("memory_reserved_peak_bytes", _INT, "maximum bytes held by the allocator"),
        _optional("sm_activity", _FLOAT, "DCGM or GPM: share of multiprocessors with a warp"),
        _optional("sm_occupancy", _FLOAT, "DCGM or GPM: share of the warps they could hold"),
        _optional("power_w", _FLOAT, "mean power of the device"),
        _optional("sm_clock_mhz", _FLOAT, "median clock of the multiprocessors"),
        *_PROVENANCE,
    ),
    (
        *(
            _required_on_success(column)
            for column in (
                "step_time_median_s",
                "step_time_p90_s",
                "memory_utilization",
                "memory_peak_bytes",
                "setup_s",
            )
        ),
        Constraint("compute_utilization", "must hold a value on a processor", _lacks_utilization),
        Constraint("failure", "but nothing was measured", _has_no_measurement),
    ),
)

COLOCATIONS = Table(
    "colocations",
    ("colocation_id", "member", "machine", "campaign"),
    (
        Column("colocation_id", _TEXT, "sorted names of the members, and the device"),
        Column("member", _INT, "position among the members", minimum=0),
        Column("members", _INT, "number of jobs on the device", minimum=1),
        Column("job_id", _TEXT, "the member this row measures"),
        Column("device_kind", _TEXT, "the device they shared"),
        Column("share", _FLOAT, "fraction of compute allocated to this member", minimum=0),
        Column(
            "sharing_mode",
            _TEXT,
            "time-slice, mps, cpu-quota; mig-mps is MPS in one MIG slice of that share",
        ),
        Column("steps", _INT, "steps timed while all members ran; 0 if not given", minimum=0),
        Column("step_time_median_s", _FLOAT, "median step, co-located", above=0, nullable=True),
        Column("solo_step_time_s", _FLOAT, "median step, solo", above=0, nullable=True),
        Column("slowdown", _FLOAT, "co-located / solo step time", above=0, nullable=True),
        Column("foreign_load", _FLOAT, "as in `executions`", minimum=0, nullable=True),
        Column("fits", _BOOL, "whether no member ran out of device memory"),
        Column("failure", _TEXT, "of this member: '', out-of-memory, crash, timeout, infeasible"),
        _optional("device_utilization", _FLOAT, "compute_utilization of all members together"),
        _optional("power_w", _FLOAT, "mean power of the device"),
        *_PROVENANCE,
    ),
    (
        _required_with_slowdown("step_time_median_s"),
        _required_with_slowdown("solo_step_time_s"),
        Constraint("slowdown", "must be step_time_median_s / solo_step_time_s", _is_not_ratio),
    ),
)

DEVICES = Table(
    "devices",
    ("device_kind", "machine", "campaign"),
    (
        Column("device_kind", _TEXT, "name of the kind"),
        Column("compute_capability", _FLOAT, "NVIDIA's number, 0 for a CPU", minimum=0),
        Column("memory_bytes", _INT, "size of its memory", minimum=1),
        Column("cores", _INT, "CUDA or CPU cores", minimum=1),
        Column("precisions", pa.list_(_TEXT), "precisions with a known peak"),
        Column("peak_flops_per_s", pa.list_(_FLOAT), "FLOP/s of each of `precisions`"),
        Column("memory_bandwidth_bytes_per_s", _FLOAT, "bytes per second", minimum=1),
        Column("op_overhead_s", _FLOAT, "least time between two operators", minimum=0),
        Column("context_bytes", _INT, "memory before the first tensor", minimum=0),
        *_PROVENANCE,
    ),
    (Constraint("peak_flops_per_s", "must have as many values as precisions", _differ_in_length),),
)

SCALE_OUT = Table(
    "scale_out",
    ("job_id", "device_kind", "nodes", "devices", "placement", "machine", "campaign"),
    (
        Column("job_id", _TEXT, "the job, with the batch size per device"),
        Column("device_kind", _TEXT, "kind of all devices"),
        Column("nodes", _INT, "number of nodes; 0 if the source does not give it", minimum=0),
        Column("devices", _INT, "number of devices that run a step together", minimum=1),
        Column(
            "placement",
            _TEXT,
            "devices on each node ('1 1 2'), consolidated, or unconsolidated; '' if not given",
        ),
        Column("step_time_s", _FLOAT, "synchronised step of all devices", above=0),
        _optional("sync_time_s", _FLOAT, "part of it spent on synchronising gradients"),
        *_PROVENANCE,
    ),
)

OPERATORS = Table(
    "operators",
    ("op", "shape", "precision", "device_kind", "machine", "campaign"),
    (
        Column("op", _TEXT, "name of the operator in the source"),
        Column("kind", _TEXT, "row of the op table"),
        Column("shape", _TEXT, "its sizes, as 'NAME=N' words"),
        Column("precision", _TEXT, "fp32, tf32, fp16, bf16, fp64"),
        *_COST,
        Column("device_kind", _TEXT, "the device it ran on"),
        Column("latency_s", _FLOAT, "time of one run; the median of several runs", above=0),
        Column("runs", _INT, "number of rows of the source merged into this one", minimum=1),
        *_PROVENANCE,
    ),
)

OUTCOMES = Table(
    "outcomes",
    ("idempotency_key",),
    (
        Column("idempotency_key", _TEXT, "client's identifier of the report"),
        Column("reported_by", _TEXT, "reporting client, by its token; '' without tokens"),
        Column("release_id", _TEXT, "release that had predicted it; '' if none"),
        Column(
            "measured_at_s",
            _FLOAT,
            "Unix time of the job's end; of the report, if the end is missing or impossible",
            minimum=0,
        ),
        Column(
            "received_at_s", _FLOAT, "Unix time at which the server received the report", minimum=0
        ),
        Column("job_id", _TEXT, "row of `jobs`; equal jobs have one id"),
        Column("reported_job_id", _TEXT, "name of the job at the client"),
        Column("family", _TEXT, "as in `jobs`"),
        Column("iterations", _INT, "steps of this run", minimum=1),
        Column("device_kind", _TEXT, "the device it ran on"),
        Column("machine", _TEXT, "digest of the device's data sheet; key in `devices`"),
        Column("share", _FLOAT, "fraction of the device's compute allocated to the job", minimum=0),
        Column("sharing_mode", _TEXT, "as in `executions`"),
        Column("colocation_id", _TEXT, "key in `colocations`; '' if the job ran solo"),
        Column("members", _INT, "jobs on the device, this one included", minimum=1),
        Column("failure", _TEXT, "'' on success, else out-of-memory, crash, timeout"),
        _optional("compute_utilization", _FLOAT, "as in `executions`"),
        _optional("memory_peak_bytes", _INT, "as in `executions`"),
        _optional("step_time_median_s", _FLOAT, "median step"),
        _optional("runtime_s", _FLOAT, "from the job's start to its end"),
        _optional("power_w", _FLOAT, "as in `executions`"),
        Column("versions", _TEXT, "framework version, as a 'name=version' word; '' if not given"),
    ),
)

# Tables of a campaign folder. In addition, importers may write scale_out and operators, and
# `presage outcomes ingest` writes outcomes, and op_stats for graphs without nodes.
CAMPAIGN_TABLES: Mapping[str, Table] = {
    t.name: t for t in (JOBS, NODES, EXECUTIONS, COLOCATIONS, DEVICES)
}
TABLES: Mapping[str, Table] = {
    **CAMPAIGN_TABLES,
    SCALE_OUT.name: SCALE_OUT,
    OPERATORS.name: OPERATORS,
    OP_STATS.name: OP_STATS,
    OUTCOMES.name: OUTCOMES,
}
