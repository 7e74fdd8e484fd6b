"""Campaign folders of several hosts -> one: ``presage profile merge``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from presage.errors import TableError
from presage.features.tables import schemas as tables
from presage.pipelines.profiling.campaign.campaign_tables import locked

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Merged:
    """Rows by table, and how many were measured twice."""

    rows: dict[str, int]
    measured_twice: int


def merge(folders: Sequence[Path], target: Path) -> Merged:
    """Write into ``target`` what all ``folders`` hold.

    Where two measured the same thing in the same campaign on machines that are alike, the row
    less disturbed by others is kept, of equals the first.

    Raises
    ------
    TableError
        A table is missing or damaged, or two folders describe one job by different graphs.
    """
    merged = {}
    twice = 0
    for name, table in tables.CAMPAIGN_TABLES.items():
        rows: dict[tuple[Any, ...], Row] = {}
        for folder in folders:
            for row in tables.read(table, folder / f"{name}.parquet").to_pylist():
                key = tuple(row[column] for column in table.key)
                known = rows.setdefault(key, row)
                if known != row:
                    twice += name != "devices"
                    rows[key] = _better(known, row, name, folder)
        ordered = [row for _, row in sorted(rows.items())]
        merged[name] = tables.from_rows(table, ordered, source=str(target / f"{name}.parquet"))
    _write(merged, target)
    return Merged({name: data.num_rows for name, data in merged.items()}, twice)


def _better(known: Row, row: Row, name: str, folder: Path) -> Row:
    if name == "jobs":
        raise TableError(
            f"{folder}: job {row['job_id']!r} has graph {row['graph_digest']}, in a folder before "
            f"it {known['graph_digest']}; trace both again with "
            "`python -m presage.pipelines.stages.profile FOLDER --trace-again`, and merge then"
        )
    return min(known, row, key=_disturbance)


def _disturbance(row: Row) -> tuple[bool, float]:
    """The same for every member of a co-location, so that all rows kept are of one run."""
    failed = bool(row.get("failure")) or row.get("slowdown", 1.0) is None
    return failed, row.get("foreign_load") or 0.0


def _write(merged: dict[str, pa.Table], target: Path) -> None:
    # Nodes first: a job's graph is there before the job is, and that before its measurements.
    with locked(target):
        for name in ("nodes", "jobs", "devices", "executions", "colocations"):
            tables.write(tables.CAMPAIGN_TABLES[name], merged[name], target / f"{name}.parquet")
