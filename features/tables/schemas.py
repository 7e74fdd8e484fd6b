"""The measured tables: one pyarrow schema each, checked whenever a table is read or written.

Times are seconds, sizes bytes, shares fractions of one. Every measured row says where it comes
from: source and its licence, campaign, machine, versions, time.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from presage.features.quantities.registry import solo_columns
from presage.features.tables.checked_table import (
    Column,
    Law,
    Table,
    check,
    column,
    from_rows,
    read,
    write,
)

__all__ = ["Column", "Law", "Table", "check", "column", "from_rows", "read", "write"]

_TEXT, _INT, _FLOAT, _BOOL = pa.string(), pa.int64(), pa.float64(), pa.bool_()

SLOWDOWN_ROUNDING = 1e-6  # relative

# What `source` and `licence` hold in rows that `presage profile` measured.
OUR_SOURCE, OUR_LICENCE = "presage profile", "Apache-2.0"
# And in rows of jobs that others ran, and reported to a server.
REPORTED_SOURCE, REPORTED_LICENCE = "presage outcomes", "none"


def _held_if_it_ran(column: str) -> Law:
    """Of our own rows; other people published what they measured, seldom all of it."""

    def broken(data: pa.Table) -> pa.ChunkedArray:
        ran = pc.equal(data.column("failure"), "")
        ours = pc.equal(data.column("source"), OUR_SOURCE)
        return pc.and_(pc.and_(ran, ours), pc.is_null(data.column(column)))

    return Law(column, "must hold a value where failure is ''", broken)


def _is_untold_on_a_processor(data: pa.Table) -> pa.ChunkedArray:
    """A GPU's driver may keep it to itself; on a processor a job counts its own time."""
    empty = _held_if_it_ran("compute_utilization").broken(data)
    return pc.and_(empty, pc.starts_with(data.column("device_kind"), "cpu-"))


def _holds_no_measurement(data: pa.Table) -> pa.ChunkedArray:
    empty = pc.equal(data.column("failure"), "")
    for name in filter(data.column_names.__contains__, solo_columns()):
        empty = pc.and_(empty, pc.is_null(data.column(name)))
    return empty


def _held_if_slowed(column: str) -> Law:
    def broken(data: pa.Table) -> pa.ChunkedArray:
        return pc.and_(pc.is_valid(data.column("slowdown")), pc.is_null(data.column(column)))

    return Law(column, "must hold a value where slowdown does", broken)


def _held_if_traced(column: str) -> Law:
    def broken(data: pa.Table) -> pa.ChunkedArray:
        traced = pc.not_equal(data.column("graph_digest"), "")
        return pc.and_(traced, pc.is_null(data.column(column)))

    return Law(column, "must hold a value where graph_digest does", broken)


def _is_no_ratio(data: pa.Table) -> pa.ChunkedArray:
    slowdown = data.column("slowdown")
    ratio = pc.divide(data.column("step_time_median_s"), data.column("solo_step_time_s"))
    return pc.greater(pc.abs(pc.subtract(slowdown, ratio)), pc.multiply(ratio, SLOWDOWN_ROUNDING))


def _are_not_as_many(data: pa.Table) -> pa.ChunkedArray:
    counts = (
        pc.list_value_length(data.column(name)) for name in ("precisions", "peak_flops_per_s")
    )
    return pc.not_equal(*counts)


def _optional(name: str, type_: pa.DataType, meaning: str) -> Column:
    """A number >= 0 that only some devices or sources tell, and that older files lack."""
    return Column(name, type_, meaning, minimum=0, nullable=True, absent=None)


_PROVENANCE = (
    Column("campaign", _TEXT, "name of the campaign that measured this row"),
    Column(
        "machine",
        _TEXT,
        "digest of the machine it ran on (processor, memory, kernel); of a source, its name",
    ),
    Column("versions", _TEXT, "framework and driver versions, as 'name=version' words"),
    Column(
        "measured_at_s",
        _FLOAT,
        "Unix time of the end of the measurement; 0 when the source does not say",
        minimum=0,
    ),
    Column(
        "source",
        _TEXT,
        f"who measured: {OUR_SOURCE!r}, or where the published file is",
        absent=OUR_SOURCE,
    ),
    Column(
        "licence",
        _TEXT,
        "SPDX name of the data's licence; none without one, non-commercial where use is limited",
        absent=OUR_LICENCE,
    ),
)

JOBS = Table(
    "jobs",
    ("job_id",),
    (
        Column("job_id", _TEXT, "name of the configuration, equal on every machine"),
        Column("name", _TEXT, "family and variant: the model, whatever its batch size"),
        Column("family", _TEXT, "the kind of model, as a person would sort it"),
        Column("framework", _TEXT, "torch, onnx, tensorflow"),
        Column("precision", _TEXT, "fp32, tf32, fp16, bf16, fp64"),
        Column(
            "optimizer",
            _TEXT,
            "sgd, adam, adamw, a source's own; none if no update is made; '' for inference; "
            "not said of a reported job",
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
            "whether a step loads its samples, from disk or host memory; else they are resident",
            absent=False,
        ),
        Column(
            "graph_digest",
            _TEXT,
            "which rows of `nodes`, or of `op_stats`, are this job's graph; '' when its model is "
            "not known",
        ),
        Column("parameters", _INT, "distinct trainable elements", minimum=0, nullable=True),
        Column(
            "peak_live_bytes", _INT, "most bytes of tensors alive at once", minimum=0, nullable=True
        ),
        _optional("parameter_bytes", _INT, "weights and buffers"),
        _optional("gradient_bytes", _INT, "gradients at the end of the backward pass"),
        _optional("optimizer_state_bytes", _INT, "what the optimizer keeps between steps"),
        _optional("activation_bytes", _INT, "kept from the forward for the backward pass"),
        _optional("workspace_bytes", _INT, "what the peak needs beyond the others"),
        _optional("batch_bytes", _INT, "inputs of a step, and targets where it reads them"),
    ),
    (_held_if_traced("parameters"), _held_if_traced("peak_live_bytes")),
)

_COST = (
    Column("input_elements", _INT, "elements of its inputs, parameters left out", minimum=0),
    Column("output_elements", _INT, "elements of its outputs", minimum=0),
    Column("parameters", _INT, "trainable elements among its inputs", minimum=0),
    Column("flops", _INT, "floating-point operations, a multiply-add counts two", minimum=0),
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
        Column("op", _TEXT, "the framework's own name of the operator"),
        Column("kind", _TEXT, "row of the op table"),
        Column("phase", _TEXT, "forward, backward, optimizer"),
        *_COST,
        Column("count", _INT, "how many equal operators the step has", minimum=1),
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
        Column("shape", _TEXT, "class of its shape; '' where there is none, or it is not known"),
        Column("count", _INT, "how many operators", minimum=1),
        Column("input_elements_max", _INT, "of the one with the largest input", minimum=0),
        Column("input_elements", _INT, "of all of them together", minimum=0),
        Column("output_elements", _INT, "of all of them together", minimum=0),
        Column("flops", _FLOAT, "of all of them, a multiply-add counts two", minimum=0),
        Column("bytes_moved", _FLOAT, "read and written if nothing is cached", minimum=0),
        Column("parameters", _INT, "trainable elements read, of two readers twice", minimum=0),
    ),
)

EXECUTIONS = Table(
    "executions",
    ("job_id", "device_kind", "machine", "share", "sharing_mode", "campaign"),
    (
        Column("job_id", _TEXT, "the job that ran"),
        Column("device_kind", _TEXT, "the device it ran on"),
        Column("share", _FLOAT, "fraction of the device's compute it was given", minimum=0),
        Column("sharing_mode", _TEXT, "exclusive, time-slice, mps, mig, cpu-quota"),
        Column("steps", _INT, "steps timed; 0 when the source does not say", minimum=0),
        Column("step_time_median_s", _FLOAT, "median step", above=0, nullable=True),
        Column("step_time_p90_s", _FLOAT, "90th percentile step", above=0, nullable=True),
        Column(
            "compute_utilization",
            _FLOAT,
            "CPU time / (wall x cores); on a GPU NVML's share of time with a kernel running, "
            "where the driver tells it",
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
            "most memory held: resident set on a CPU, device memory of the process on a GPU",
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
            "share of the device that others used meanwhile: what noise there was",
            minimum=0,
            nullable=True,
        ),
        Column("failure", _TEXT, "'' when it ran, else out-of-memory, crash, timeout, infeasible"),
        _optional("memory_allocated_peak_bytes", _INT, "most bytes of tensors, by the allocator"),
        _optional("memory_reserved_peak_bytes", _INT, "most bytes the allocator held"),
        _optional("sm_activity", _FLOAT, "DCGM or GPM: share of multiprocessors with a warp"),
        _optional("sm_occupancy", _FLOAT, "DCGM or GPM: share of the warps they could hold"),
        _optional("power_w", _FLOAT, "mean power of the device"),
        _optional("sm_clock_mhz", _FLOAT, "median clock of the multiprocessors"),
        *_PROVENANCE,
    ),
    (
        *(
            _held_if_it_ran(column)
            for column in (
                "step_time_median_s",
                "step_time_p90_s",
                "memory_utilization",
                "memory_peak_bytes",
                "setup_s",
            )
        ),
        Law("compute_utilization", "must hold a value on a processor", _is_untold_on_a_processor),
        Law("failure", "but nothing was measured", _holds_no_measurement),
    ),
)

COLOCATIONS = Table(
    "colocations",
    ("colocation_id", "member", "machine", "campaign"),
    (
        Column("colocation_id", _TEXT, "the members' names, sorted and joined, and the device"),
        Column("member", _INT, "position among the members", minimum=0),
        Column("members", _INT, "how many jobs shared the device", minimum=1),
        Column("job_id", _TEXT, "the member this row measures"),
        Column("device_kind", _TEXT, "the device they shared"),
        Column("share", _FLOAT, "fraction of compute this member was given", minimum=0),
        Column(
            "sharing_mode",
            _TEXT,
            "time-slice, mps, cpu-quota; mig-mps is MPS in one MIG slice of that share",
        ),
        Column("steps", _INT, "steps timed while all members ran; 0 when not said", minimum=0),
        Column("step_time_median_s", _FLOAT, "median step, together", above=0, nullable=True),
        Column("solo_step_time_s", _FLOAT, "median step, alone", above=0, nullable=True),
        Column("slowdown", _FLOAT, "together / alone", above=0, nullable=True),
        Column("foreign_load", _FLOAT, "as in `executions`", minimum=0, nullable=True),
        Column("fits", _BOOL, "the device's memory was enough: no member ran out of it"),
        Column("failure", _TEXT, "this member's: '', out-of-memory, crash, timeout, infeasible"),
        _optional("device_utilization", _FLOAT, "compute_utilization of all members together"),
        _optional("power_w", _FLOAT, "mean power of the device"),
        *_PROVENANCE,
    ),
    (
        _held_if_slowed("step_time_median_s"),
        _held_if_slowed("solo_step_time_s"),
        Law("slowdown", "must be step_time_median_s / solo_step_time_s", _is_no_ratio),
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
        Column("op_overhead_s", _FLOAT, "least time from operator to operator", minimum=0),
        Column("context_bytes", _INT, "memory before the first tensor", minimum=0),
        *_PROVENANCE,
    ),
    (Law("peak_flops_per_s", "must be as many as precisions", _are_not_as_many),),
)

SCALE_OUT = Table(
    "scale_out",
    ("job_id", "device_kind", "nodes", "devices", "placement", "machine", "campaign"),
    (
        Column("job_id", _TEXT, "the job, at the batch size of one device"),
        Column("device_kind", _TEXT, "the kind of every device"),
        Column("nodes", _INT, "how many nodes; 0 when the source does not say", minimum=0),
        Column("devices", _INT, "how many devices stepped together", minimum=1),
        Column(
            "placement",
            _TEXT,
            "devices on each node ('1 1 2'), or consolidated, or unconsolidated; '' when not said",
        ),
        Column("step_time_s", _FLOAT, "a step of all devices, synchronised", above=0),
        _optional("sync_time_s", _FLOAT, "the part of it spent on synchronising gradients"),
        *_PROVENANCE,
    ),
)

OPERATORS = Table(
    "operators",
    ("op", "shape", "precision", "device_kind", "machine", "campaign"),
    (
        Column("op", _TEXT, "the source's own name of the operator"),
        Column("kind", _TEXT, "row of the op table"),
        Column("shape", _TEXT, "its sizes, as 'NAME=N' words"),
        Column("precision", _TEXT, "fp32, tf32, fp16, bf16, fp64"),
        *_COST,
        Column("device_kind", _TEXT, "the device it ran on"),
        Column("latency_s", _FLOAT, "of one run; the median where there are several", above=0),
        Column("runs", _INT, "how many rows of the source this one stands for", minimum=1),
        *_PROVENANCE,
    ),
)

OUTCOMES = Table(
    "outcomes",
    ("idempotency_key",),
    (
        Column("idempotency_key", _TEXT, "the reporter's own name of the report"),
        Column("reported_by", _TEXT, "who reported it, by the server's token; '' without tokens"),
        Column("release_id", _TEXT, "the release that had foretold it; '' if none had"),
        Column(
            "measured_at_s",
            _FLOAT,
            "Unix time of its end; of its report, where that is not told or cannot be",
            minimum=0,
        ),
        Column("received_at_s", _FLOAT, "Unix time of the report, by the server", minimum=0),
        Column("job_id", _TEXT, "row of `jobs`: equal jobs have one id, whatever they are called"),
        Column("reported_job_id", _TEXT, "what the reporter calls it"),
        Column("family", _TEXT, "as in `jobs`"),
        Column("iterations", _INT, "steps of this run", minimum=1),
        Column("device_kind", _TEXT, "the device it ran on"),
        Column("machine", _TEXT, "digest of the device's data sheet: which row of `devices`"),
        Column("share", _FLOAT, "fraction of the device's compute it was given", minimum=0),
        Column("sharing_mode", _TEXT, "as in `executions`"),
        Column("colocation_id", _TEXT, "of `colocations`; '' if it was alone"),
        Column("members", _INT, "jobs on the device, this one included", minimum=1),
        Column("failure", _TEXT, "'' when it ran to its end, else out-of-memory, crash, timeout"),
        _optional("compute_utilization", _FLOAT, "as in `executions`"),
        _optional("memory_peak_bytes", _INT, "as in `executions`"),
        _optional("step_time_median_s", _FLOAT, "median step"),
        _optional("runtime_s", _FLOAT, "from its start to its end"),
        Column("versions", _TEXT, "of its framework, as a 'name=version' word; '' if not told"),
    ),
)

# What a campaign folder holds. Importers may write scale_out and operators besides,
# `presage outcomes ingest` op_stats, of graphs without nodes, and outcomes.
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
