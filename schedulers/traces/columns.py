"""What a job is called in a row: the columns of our csv, and of a log's ``submit`` lines."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable
from typing import Any, NamedTuple

from presage.schedulers.core.allocation import FULL_DEVICE_MILLI
from presage.schedulers.core.job import Checkpointing, Job
from presage.schedulers.traces.row import SECONDS, Row, count, not_negative, number, seconds, whole

Cell = str | int | float
REQUIRED = ("job_id", "submit", "gpus", "duration")
_GIB = 2**30


class _Column(NamedTuple):
    """How a field is read and written; blank is ``unsaid``."""

    parse: Callable[[str], Any]
    must_be: str
    of: Callable[[Job], Cell]
    unsaid: Cell


def _kinds(text: str) -> tuple[str, ...]:
    quoted = any(mark in text for mark in "'\"\\")  # as a kind is that has a space in it
    return tuple(shlex.split(text) if quoted else text.split())


def _gib(text: str) -> int:
    return whole(str(round(not_negative(text) * _GIB)))


def _flag(text: str) -> bool:
    return {"0": False, "1": True}[text]


def _interval_s(text: str) -> float:
    value = number(text)
    if not value > 0:
        raise ValueError(text)
    return value


_WHOLE = "a whole number"
_COLUMNS = {
    "model": _Column(str, "text", lambda job: job.model, ""),
    "user": _Column(str, "text", lambda job: job.user, ""),
    "min_gpus": _Column(count, f"{_WHOLE} >= 0", lambda job: job.min_gpus, 0),
    "kinds": _Column(_kinds, "kinds of devices", lambda job: shlex.join(job.kinds), ""),
    "compute_milli": _Column(
        count, f"{_WHOLE} >= 0", lambda job: job.compute_milli, FULL_DEVICE_MILLI
    ),
    "memory_gib": _Column(_gib, "a number >= 0", lambda job: job.memory_bytes / _GIB, 0.0),
    "iterations": _Column(count, f"{_WHOLE} >= 0", lambda job: job.iterations, 0),
    "latency_sensitive": _Column(_flag, "0 or 1", lambda job: int(job.latency_sensitive), 0),
    "priority": _Column(whole, _WHOLE, lambda job: job.priority, 0),
    "checkpoint_interval_s": _Column(
        _interval_s, "a number of seconds > 0", lambda job: job.checkpointing.interval_s, math.inf
    ),
    "checkpoint_cost_s": _Column(seconds, SECONDS, lambda job: job.checkpointing.cost_s, 0.0),
    "restart_s": _Column(seconds, SECONDS, lambda job: job.checkpointing.restart_s, 0.0),
}
_CHECKPOINTING = {
    "checkpoint_interval_s": "interval_s",
    "checkpoint_cost_s": "cost_s",
    "restart_s": "restart_s",
}
OPTIONAL = tuple(_COLUMNS)


def to_row(job: Job) -> dict[str, Cell]:
    """A job's gang, and by column whatever else was said of it; its features are left out."""
    said = ((name, column.of(job), column.unsaid) for name, column in _COLUMNS.items())
    return {"gpus": job.gpus} | {name: value for name, value, unsaid in said if value != unsaid}


def fields_of(row: Row) -> dict[str, Any]:
    """What :func:`to_row` wrote, as fields of a job.

    Raises
    ------
    TableError
        A cell cannot be read; names the line and the column.
    """
    said = {
        name: row.read(name, column.parse, column.must_be)
        for name, text in row.cells.items()
        if text and (column := _COLUMNS.get(name))
    }
    costs = {field: said.pop(name) for name, field in _CHECKPOINTING.items() if name in said}
    if costs:
        said["checkpointing"] = Checkpointing(**costs)
    if "memory_gib" in said:
        said["memory_bytes"] = said.pop("memory_gib")
    return {"gpus": row.gang("gpus"), **said}
