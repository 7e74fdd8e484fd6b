"""The measured tables: one pyarrow schema each, checked whenever a table is read or written.

Times are seconds, sizes bytes, shares fractions of one. Every measured row says where it comes
from: campaign, machine, versions, time.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from presage.features.errors import TableError


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its type, what it means, and which values it may hold."""

    name: str
    type: pa.DataType
    meaning: str
    minimum: float | None = None
    above: float | None = None  # a minimum that is itself no value
    nullable: bool = False


@dataclass(frozen=True, slots=True)
class Law:
    """What a row says by several of its columns; ``broken`` tells which rows do not keep to it."""

    column: str  # the one to name
    rule: str
    broken: Callable[[pa.Table], pa.ChunkedArray]


@dataclass(frozen=True, slots=True)
class Table:
    """A named list of columns, the key no two rows share, and the laws that every row keeps."""

    name: str
    key: tuple[str, ...]
    columns: tuple[Column, ...]
    laws: tuple[Law, ...] = ()

    @property
    def schema(self) -> pa.Schema:
        """The pyarrow schema."""
        return pa.schema([pa.field(c.name, c.type, nullable=c.nullable) for c in self.columns])


_TEXT, _INT, _FLOAT, _BOOL = pa.string(), pa.int64(), pa.float64(), pa.bool_()

SLOWDOWN_ROUNDING = 1e-6  # relative


def _held_if_it_ran(column: str) -> Law:
    def broken(data: pa.Table) -> pa.ChunkedArray:
        return pc.and_(pc.equal(data.column("failure"), ""), pc.is_null(data.column(column)))

    return Law(column, "must hold a value where failure is ''", broken)


def _held_if_slowed(column: str) -> Law:
    def broken(data: pa.Table) -> pa.ChunkedArray:
        return pc.and_(pc.is_valid(data.column("slowdown")), pc.is_null(data.column(column)))

    return Law(column, "must hold a value where slowdown does", broken)


def _is_no_ratio(data: pa.Table) -> pa.ChunkedArray:
    slowdown = data.column("slowdown")
    ratio = pc.divide(data.column("step_time_median_s"), data.column("solo_step_time_s"))
    return pc.greater(pc.abs(pc.subtract(slowdown, ratio)), pc.multiply(ratio, SLOWDOWN_ROUNDING))


def _are_not_as_many(data: pa.Table) -> pa.ChunkedArray:
    counts = (
        pc.list_value_length(data.column(name)) for name in ("precisions", "peak_flops_per_s")
    )
    return pc.not_equal(*counts)


_PROVENANCE = (
    Column("campaign", _TEXT, "name of the campaign that measured this row"),
    Column("machine", _TEXT, "digest of the machine it ran on (processor, memory, kernel)"),
    Column("versions", _TEXT, "framework and driver versions, as 'name=version' words"),
    Column("measured_at_s", _FLOAT, "Unix time of the end of the measurement", minimum=0),
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
        Column("optimizer", _TEXT, "sgd, adam, adamw; '' for inference"),
        Column("batch_size", _INT, "samples in one step", minimum=1),
        Column("iterations", _INT, "steps of the whole job", minimum=1),
        Column("input_elements", _INT, "elements of one sample", minimum=1),
        Column("graph_digest", _TEXT, "which rows of `nodes` are this job's graph"),
        Column("parameters", _INT, "distinct trainable elements", minimum=0),
        Column("peak_live_bytes", _INT, "most bytes of tensors alive at once", minimum=0),
    ),
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
        Column("input_elements", _INT, "elements of its inputs, parameters left out", minimum=0),
        Column("output_elements", _INT, "elements of its outputs", minimum=0),
        Column("parameters", _INT, "trainable elements among its inputs", minimum=0),
        Column("flops", _INT, "floating-point operations, a multiply-add counts two", minimum=0),
        Column("bytes_moved", _INT, "bytes read and written if nothing is cached", minimum=0),
        Column("count", _INT, "how many equal operators the step has", minimum=1),
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
        Column("steps", _INT, "steps timed", minimum=0),
        Column("step_time_median_s", _FLOAT, "median step", above=0, nullable=True),
        Column("step_time_p90_s", _FLOAT, "90th percentile step", above=0, nullable=True),
        Column(
            "compute_utilization",
            _FLOAT,
            "CPU time / (wall x cores); on a GPU NVML's share of time with a kernel running",
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
        Column("failure", _TEXT, "'' when it ran, else out-of-memory, crash, timeout"),
        *_PROVENANCE,
    ),
    tuple(
        _held_if_it_ran(column)
        for column in (
            "step_time_median_s",
            "step_time_p90_s",
            "compute_utilization",
            "memory_utilization",
            "memory_peak_bytes",
            "setup_s",
        )
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
        Column("sharing_mode", _TEXT, "time-slice, mps, mig, cpu-quota"),
        Column("steps", _INT, "steps timed while all members ran", minimum=0),
        Column("step_time_median_s", _FLOAT, "median step, together", above=0, nullable=True),
        Column("solo_step_time_s", _FLOAT, "median step, alone", above=0, nullable=True),
        Column("slowdown", _FLOAT, "together / alone", above=0, nullable=True),
        Column("foreign_load", _FLOAT, "as in `executions`", minimum=0, nullable=True),
        Column("fits", _BOOL, "the device's memory was enough: no member ran out of it"),
        Column("failure", _TEXT, "this member's: '', out-of-memory, crash, timeout"),
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

TABLES: Mapping[str, Table] = {t.name: t for t in (JOBS, NODES, EXECUTIONS, COLOCATIONS, DEVICES)}


def check(table: Table, data: pa.Table, *, source: str) -> pa.Table:
    """``data`` in the schema's column order.

    Raises
    ------
    TableError
        A column is missing, extra or of another type; a value is null, NaN, infinite or below
        its minimum; a row breaks a law; a key occurs twice. Names the file, the column and the
        first bad row.
    """
    found, expected = data.column_names, [c.name for c in table.columns]
    missing = [name for name in expected if name not in found]
    if missing:
        near = get_close_matches(missing[0], found, n=1)
        hint = f"; nearest is {near[0]!r}" if near else ""
        raise TableError(
            f"{source}: no column {missing[0]!r} ({len(missing)} of {len(expected)} missing){hint}."
            f" Table {table.name!r} has: {', '.join(expected)}"
        )
    extra = [name for name in found if name not in expected]
    if extra:
        raise TableError(
            f"{source}: column {extra[0]!r} does not belong to table {table.name!r}; "
            "remove it, or declare it in features/tables.py"
        )
    data = data.select(expected)
    for column in table.columns:
        _check_column(column, data.column(column.name), source=source)
    named = {column.name: column for column in table.columns}
    for law in table.laws:
        _refuse(law.broken(data), named[law.column], data.column(law.column), law.rule, source)
    _check_key(table, data, source=source)
    return data.cast(table.schema)


def _check_column(column: Column, values: pa.ChunkedArray, *, source: str) -> None:
    if values.type != column.type:
        raise TableError(
            f"{source}: column {column.name!r} is {values.type}, must be {column.type}; "
            f"cast it before writing ({column.meaning})"
        )
    if not column.nullable and values.null_count:
        row = values.is_null().index(True).as_py()
        raise TableError(
            f"{source}: row {row}, column {column.name!r} is empty, which it may not be "
            f"({column.meaning}); remove the row"
        )
    if column.type == _FLOAT:
        _refuse(pc.invert(pc.is_finite(values)), column, values, "must be a finite number", source)
    if column.minimum is not None:
        below = pc.less(values, pa.scalar(column.minimum, type=column.type))
        _refuse(below, column, values, f"must be >= {column.minimum:g}", source)
    if column.above is not None:
        below = pc.less_equal(values, pa.scalar(column.above, type=column.type))
        _refuse(below, column, values, f"must be > {column.above:g}", source)


def _refuse(
    bad: pa.ChunkedArray, column: Column, values: pa.ChunkedArray, rule: str, source: str
) -> None:
    row = bad.index(pa.scalar(True)).as_py()
    if row >= 0:
        value = values[row].as_py()
        raise TableError(
            f"{source}: row {row}, column {column.name!r} is "
            f"{'empty' if value is None else value}, {rule} "
            f"({column.meaning}); measure that row again or remove it"
        )


def _check_key(table: Table, data: pa.Table, *, source: str) -> None:
    groups = data.group_by(list(table.key)).aggregate([([], "count_all")])
    twice = groups.filter(pc.greater(groups.column("count_all"), 1))
    if twice.num_rows:
        first = {name: twice.column(name)[0].as_py() for name in table.key}
        raise TableError(
            f"{source}: {twice.column('count_all')[0].as_py()} rows share the key {first}; "
            "keep one of them"
        )


def from_rows(table: Table, rows: Sequence[Mapping[str, Any]], *, source: str) -> pa.Table:
    """Table of dictionaries, checked."""
    names = {c.name for c in table.columns}
    for row in rows:
        if unknown := row.keys() - names:
            raise TableError(
                f"{source}: column {min(unknown)!r} does not belong to table {table.name!r}; "
                "remove it, or declare it in features/tables.py"
            )
    try:
        data = pa.Table.from_pylist(list(rows), schema=table.schema)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise TableError(f"{source}: a row does not fit table {table.name!r}: {error}") from error
    return check(table, data, source=source)


def read(table: Table, path: Path) -> pa.Table:
    """Table at ``path``, checked.

    Raises
    ------
    TableError
        The file is missing, is not parquet, or breaks the schema.
    """
    try:
        # Without partitioning: a folder called "share=1" must not grow a column.
        data = pq.read_table(path, partitioning=None)
    except FileNotFoundError as error:
        raise TableError(
            f"{path}: no such table; measure it with `presage profile`, or run `dvc repro`"
        ) from error
    except (pa.ArrowInvalid, OSError) as error:
        raise TableError(
            f"{path}: not a readable parquet file ({error}); restore it from git or measure again"
        ) from error
    return check(table, data, source=str(path))


def write(table: Table, data: pa.Table, path: Path) -> None:
    """Write a checked table; a reader sees the old file or the new one, never half of it."""
    checked = check(table, data, source=str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    try:
        # zstd and no metadata of pandas: the same rows give the same bytes.
        pq.write_table(checked, partial, compression="zstd")
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def column(data: pa.Table, name: str) -> np.ndarray[Any, np.dtype[Any]]:
    """One column as a numpy array; nulls become NaN."""
    values: np.ndarray[Any, np.dtype[Any]] = data.column(name).to_numpy()
    return values
