"""Merging of campaign folders from several hosts: ``presage profile merge``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from presage.errors import TableError
from presage.features.tables import schemas as tables
from presage.pipelines.profiling.campaign.campaign_tables import lock_folder

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Merged:
    """Number of rows by table, and number of duplicates."""

    rows: dict[str, int]
    duplicates: int


def merge(folders: Sequence[Path], target: Path) -> Merged:
    """Write the rows of all ``folders`` into ``target``.

    If two rows measure the same thing in the same campaign on equal machines, the less disturbed
    row is kept; of equal rows, the first.

    Raises
    ------
    TableError
        A table is missing or corrupt, or two folders describe one job by different graphs.
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
            f"{folder}: job {row['job_id']!r} has graph {row['graph_digest']}, but "
            f"{known['graph_digest']} in an earlier folder; retrace both with "
            "`python -m presage.pipelines.stages.profile FOLDER --retrace`, then merge again"
        )
    return min(known, row, key=_disturbance)


def _disturbance(row: Row) -> tuple[bool, float]:
    """Return a sort key that is equal for all members of a co-location, to keep rows of one run."""
    failed = bool(row.get("failure")) or row.get("slowdown", 1.0) is None
    return failed, row.get("foreign_load") or 0.0


def _write(merged: dict[str, pa.Table], target: Path) -> None:
    # Write nodes before jobs, and jobs before measurements, so that references always resolve.
    with lock_folder(target):
        for name in ("nodes", "jobs", "devices", "executions", "colocations"):
            tables.write(tables.CAMPAIGN_TABLES[name], merged[name], target / f"{name}.parquet")
