"""Tables of jobs: of 80 columns by default, or with all columns."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from presage.cli.scheduling.cluster.tables import (
    compact_table,
    done_of,
    nodes_of,
    phase_of,
    shares_of,
    usage_of,
)
from presage.schedulers.live.client.elastic_text import is_elastic, size_text
from presage.schedulers.live.client.slo_text import slo_text
from presage.schedulers.v1 import cluster_pb2 as pb
from presage.system.text.terminal import Name, Table
from presage.system.text.units import counted, quantity

UNKNOWN = "-"
_RIGHT = ("devices", "share", "done", "usage", "memory", "age", "left", "attempt", "priority")
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "m"), (1, "s"))
_ON_NODE = (pb.PLACED, pb.RUNNING, pb.PAUSED, pb.LEAVING)


Cell = Callable[[pb.JobStatus, float], "str | Name"]  # of a job, at a Unix time


def job_table(
    found: pb.ListResponse, *, why: bool = False, now_unix_s: float | None = None
) -> Table:
    """Return a row per job; with ``why``, a column says why it is in its state, not its share.

    Columns that say something about elastic or latency-sensitive jobs are present if there are any.
    """
    columns = [
        "job",
        "user",
        "state",
        "node",
        *(["devices"] if any(is_elastic(row.job) for row in found.jobs) else []),
        *([] if why else ["share"]),
        "done",
        "age",
        *(["why"] if why else ["left"]),
        *(["QoS"] if any(slo_text(row) for row in found.jobs) else []),
    ]
    return _table(found, columns, now_unix_s)


def wide_job_table(found: pb.ListResponse, *, now_unix_s: float | None = None) -> Table:
    """Return a row per job with all columns."""
    columns = (
        "job", "user", "class", "priority", "state", "node", "devices", "share", "done", "usage",
        "memory", "age", "left", "attempt", "QoS", "why",
    )  # fmt: skip
    return _table(found, columns, now_unix_s)


def _table(found: pb.ListResponse, columns: Sequence[str], now_unix_s: float | None) -> Table:
    policy = f" under {found.policy}" if found.policy else ""
    table = compact_table(f"{counted(len(found.jobs), 'job')}{policy}")
    now_unix_s = time.time() if now_unix_s is None else now_unix_s
    add_columns(table, columns)
    for row in found.jobs:
        table.add_row(*(_CELLS[column](row, now_unix_s) for column in columns))
    return table


def add_columns(table: Table, columns: Iterable[str]) -> None:
    """Add columns; states and numbers are never wrapped."""
    for column in columns:
        is_number = column in _RIGHT
        is_whole = is_number or column == "state"
        table.add_column(column, justify="right" if is_number else "left", no_wrap=is_whole)


def age_text(seconds: float) -> str:
    """Return a time in at most two units: "45s", "12m", "3h20m", "5d4h"."""
    seconds = max(0, round(seconds))
    for i, (unit_s, unit) in enumerate(_UNITS[:-1]):
        if seconds >= 2 * unit_s or (i < 2 and seconds >= unit_s):
            count, rest_s = divmod(seconds, unit_s)
            below_s, below = _UNITS[i + 1]
            more = "" if unit == "m" or count >= 10 else rest_s // below_s
            return f"{count}{unit}{f'{more}{below}' if more else ''}"
    return f"{seconds}s"


def left_text(row: pb.JobStatus) -> str:
    """Return the predicted time to the end of a job on a node; a dash if it is unknown."""
    if row.phase not in _ON_NODE or not 0 < row.remaining_s < math.inf:
        return UNKNOWN
    return age_text(row.remaining_s)


_CELLS: Mapping[str, Cell] = {
    "job": lambda row, _: Name(row.job.job_id),
    "user": lambda row, _: Name(row.job.user or UNKNOWN),
    "class": lambda row, _: "latency sensitive" if row.job.latency_sensitive else "best effort",
    "priority": lambda row, _: str(row.job.priority),
    "state": lambda row, _: phase_of(row),
    "node": lambda row, _: Name(nodes_of(row)),
    "devices": lambda row, _: size_text(row),
    "share": lambda row, _: shares_of(row),
    "done": lambda row, _: done_of(row) if row.started_unix_s else "",
    "usage": lambda row, _: usage_of(row) if row.usage_milli else "",
    "memory": lambda row, _: quantity(row.memory_bytes, "bytes") if row.memory_bytes else "",
    "age": lambda row, now_unix_s: age_text(now_unix_s - row.submitted_unix_s),
    "left": lambda row, _: left_text(row),
    "attempt": lambda row, _: str(row.attempt) if row.attempt else "",
    "QoS": lambda row, _: slo_text(row),
    "why": lambda row, _: row.reason,
}
