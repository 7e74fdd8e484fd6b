"""Columns of a job: in Presage's CSV traces and in the ``submit`` lines of an event log."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable
from typing import Any, NamedTuple

from presage.schedulers.core.allocation import FULL_DEVICE_MILLI
from presage.schedulers.core.job import Checkpointing, Job
from presage.schedulers.traces.row import (
    SECONDS,
    Row,
    parse_count,
    parse_int,
    parse_non_negative,
    parse_number,
    parse_seconds,
)

Cell = str | int | float
REQUIRED = ("job_id", "submit", "gpus", "duration")
_GIB = 2**30


class _Column(NamedTuple):
    """Parser, formatter and default of a column; a blank cell means ``default``."""

    parse: Callable[[str], Any]
    must_be: str
    format: Callable[[Job], Cell]
    default: Cell


def _parse_kinds(text: str) -> tuple[str, ...]:
    is_quoted = any(mark in text for mark in "'\"\\")  # a kind that contains a space is quoted
    return tuple(shlex.split(text) if is_quoted else text.split())


def _parse_gib(text: str) -> int:
    return parse_int(str(round(parse_non_negative(text) * _GIB)))


def _parse_flag(text: str) -> bool:
    return {"0": False, "1": True}[text]


def _parse_interval_s(text: str) -> float:
    value = parse_number(text)
    if not value > 0:
        raise ValueError(text)
    return value


_INTEGER = "an integer"
_COLUMNS = {
    "model": _Column(str, "text", lambda job: job.model, ""),
    "user": _Column(str, "text", lambda job: job.user, ""),
    "min_gpus": _Column(parse_count, f"{_INTEGER} >= 0", lambda job: job.min_gpus, 0),
    "max_gpus": _Column(parse_count, f"{_INTEGER} >= 0", lambda job: job.max_gpus, 0),
    "kinds": _Column(_parse_kinds, "kinds of devices", lambda job: shlex.join(job.kinds), ""),
    "compute_milli": _Column(
        parse_count, f"{_INTEGER} >= 0", lambda job: job.compute_milli, FULL_DEVICE_MILLI
    ),
    "memory_gib": _Column(_parse_gib, "a number >= 0", lambda job: job.memory_bytes / _GIB, 0.0),
    "iterations": _Column(parse_count, f"{_INTEGER} >= 0", lambda job: job.iterations, 0),
    "latency_sensitive": _Column(_parse_flag, "0 or 1", lambda job: int(job.latency_sensitive), 0),
    "priority": _Column(parse_int, _INTEGER, lambda job: job.priority, 0),
    "checkpoint_interval_s": _Column(
        _parse_interval_s,
        "a number of seconds > 0",
        lambda job: job.checkpointing.interval_s,
        math.inf,
    ),
    "checkpoint_cost_s": _Column(parse_seconds, SECONDS, lambda job: job.checkpointing.cost_s, 0.0),
    "restart_s": _Column(parse_seconds, SECONDS, lambda job: job.checkpointing.restart_s, 0.0),
}
_CHECKPOINTING = {
    "checkpoint_interval_s": "interval_s",
    "checkpoint_cost_s": "cost_s",
    "restart_s": "restart_s",
}
OPTIONAL = tuple(_COLUMNS)


def to_row(job: Job) -> dict[str, Cell]:
    """Return the columns of a job that differ from their defaults, without its features."""
    cells = ((name, column.format(job), column.default) for name, column in _COLUMNS.items())
    return {"gpus": job.gpus} | {name: value for name, value, default in cells if value != default}


def parse_fields(row: Row) -> dict[str, Any]:
    """Parse a row that :func:`to_row` wrote into the fields of a job.

    Raises
    ------
    TableError
        A cell is invalid; the message names the line and the column.
    """
    values = {
        name: row.read(name, column.parse, column.must_be)
        for name, text in row.cells.items()
        if text and (column := _COLUMNS.get(name))
    }
    costs = {field: values.pop(name) for name, field in _CHECKPOINTING.items() if name in values}
    if costs:
        values["checkpointing"] = Checkpointing(**costs)
    if "memory_gib" in values:
        values["memory_bytes"] = values.pop("memory_gib")
    return {"gpus": row.gang_size("gpus"), **values}
