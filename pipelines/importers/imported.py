"""Collector of rows of our tables from published measurements."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from presage.features.device.device import Device, device_kind, find_device
from presage.features.graph.op_graph import OpGraph
from presage.features.tables import schemas as tables
from presage.pipelines.profiling.running.profile_rows import (
    device_columns,
    graph_columns,
    node_rows,
)
from presage.pipelines.profiling.running.work import Row

ADD_DEVICE = "add its data sheet there, with this name among its `names`"
UNKNOWN_TIME_S = 0.0  # if a source gives no time


@dataclass(frozen=True, slots=True)
class Origin:
    """Origin of published measurements.

    Attributes
    ----------
    url : str
        The upstream repository and folder.
    licence : str
        SPDX name; "none" if upstream grants no licence, "non-commercial" if it forbids other use.
    """

    name: str
    url: str
    licence: str


@dataclass
class Imported:
    """Rows collected from one source, and the reasons for skipped rows.

    Importers call the methods; :meth:`write` checks everything against the schemas.

    Attributes
    ----------
    skipped, notes : Counter of str
        By reason: rows of the source that are in no table, and rows that are imported with less
        than the source contains, or than we need.
    """

    origin: Origin
    skipped: Counter[str] = field(default_factory=Counter)
    notes: Counter[str] = field(default_factory=Counter)
    rows: dict[str, dict[tuple[Any, ...], Row]] = field(
        default_factory=lambda: {name: {} for name in tables.TABLES}
    )
    # A third of a million rows at once: as dictionaries they would take gigabytes.
    _operators: list[pd.DataFrame] = field(default_factory=list)

    def job(self, job_id: str, *, graph: OpGraph | None, **columns: Any) -> None:
        """Add a configuration, once; ``columns`` are those of ``jobs`` that a graph does not give.

        Without a graph ``input_elements`` is required.
        """
        if self.has_job(job_id):
            return
        described = {"framework": "torch", "iterations": 1000} | columns
        if graph is None:
            described |= {"graph_digest": "", "parameters": None, "peak_live_bytes": None}
        else:
            described |= graph_columns(graph)
            for row in node_rows(graph):
                self._add("nodes", row)
        self._add("jobs", {"job_id": job_id} | described)

    def execution(self, job_id: str, device_kind: str, *, campaign: str, **columns: Any) -> None:
        """Add a solo run or its failure; unknown measurements may be omitted.

        ``memory_utilization`` follows from ``memory_peak_bytes`` and the device.
        """
        device = self._device(device_kind, campaign, columns)
        peak = columns.get("memory_peak_bytes")
        unknown = dict.fromkeys(
            (
                "step_time_median_s", "step_time_p90_s", "compute_utilization", "setup_s",
                "memory_peak_bytes", "foreign_load",
            )
        )  # fmt: skip
        self._add(
            "executions",
            unknown
            | {
                "job_id": job_id,
                "device_kind": device_kind,
                "share": 1.0,
                "sharing_mode": "exclusive",
                "steps": 0,
                "failure": "",
                "memory_utilization": None if peak is None else peak / device.memory_bytes,
            }
            | columns
            | self._provenance(campaign, device_kind, columns),
        )

    def colocation(
        self, colocation_id: str, members: list[Row], device_kind: str, *, campaign: str
    ) -> None:
        """Add jobs that shared a device, with each member's own columns.

        A member needs ``job_id``; ``slowdown`` follows from ``step_time_median_s`` and
        ``solo_step_time_s`` if both exist.
        """
        for position, member in enumerate(sorted(members, key=lambda member: member["job_id"])):
            self._device(device_kind, campaign, member)
            together, solo = member.get("step_time_median_s"), member.get("solo_step_time_s")
            self._add(
                "colocations",
                {
                    "colocation_id": colocation_id,
                    "member": position,
                    "members": len(members),
                    "device_kind": device_kind,
                    "share": 1.0,
                    "sharing_mode": "time-slice",
                    "steps": 0,
                    "step_time_median_s": None,
                    "solo_step_time_s": None,
                    "slowdown": together / solo if together and solo else None,
                    "foreign_load": None,
                    "fits": True,
                    "failure": "",
                }
                | member
                | self._provenance(campaign, device_kind, member),
            )

    def scale_out(self, job_id: str, device_kind: str, *, campaign: str, **columns: Any) -> None:
        """Add a step of one job over several devices."""
        self._device(device_kind, campaign, columns)
        row = {"job_id": job_id, "device_kind": device_kind} | columns
        self._add("scale_out", row | self._provenance(campaign, device_kind, columns))

    def operators(self, rows: pd.DataFrame, *, campaign: str) -> None:
        """Add the latencies of many operators, with all columns except the provenance."""
        for kind in rows["device_kind"].unique():
            self._device(kind, campaign, {})
        known = self._provenance(campaign, "", {})
        machine = f"{self.origin.name} " + rows["device_kind"]
        self._operators.append(rows.assign(**known | {"machine": machine} | dict(rows)))

    def kind_of(self, name: str, rows: int = 1) -> str | None:
        """Return the device kind of a source's ``name``; None, and its rows skipped, if unknown.

        The other rows of the file are still imported.
        """
        kind = device_kind(name)
        if kind is None:
            self.skip(
                f"device {name!r} is not in features/device/catalogue.yaml; {ADD_DEVICE}", rows
            )
        return kind

    def skip(self, reason: str, rows: int = 1) -> None:
        """Count rows of the source that cannot be mapped, by a readable reason."""
        self.skipped[reason] += rows

    def note(self, reason: str, rows: int = 1) -> None:
        """Count rows that are imported with less than we need, by a readable reason."""
        self.notes[reason] += rows

    def has_job(self, job_id: str) -> bool:
        """Return whether :meth:`job` added it."""
        return (job_id,) in self.rows["jobs"]

    def count(self, table: str) -> int:
        """Return the current number of rows of a table."""
        if table == tables.OPERATORS.name:
            return sum(map(len, self._operators))
        return len(self.rows[table])

    def write(self, folder: Path) -> None:
        """Write the campaign's tables into ``folder``, and the other two if they have rows.

        Raises
        ------
        TableError
            A row does not fit its table.
        """
        for name, table in tables.TABLES.items():
            path = folder / f"{name}.parquet"
            rows = [
                row for _, row in sorted(self.rows[name].items(), key=lambda item: str(item[0]))
            ]
            if rows or name in tables.CAMPAIGN_TABLES:
                tables.write(table, tables.from_rows(table, rows, source=str(path)), path)
        if self._operators:
            frame = pd.concat(self._operators)
            data = pa.Table.from_pandas(frame, tables.OPERATORS.schema, preserve_index=False)
            tables.write(tables.OPERATORS, data, folder / f"{tables.OPERATORS.name}.parquet")

    def _device(self, kind: str, campaign: str, columns: Row) -> Device:
        device = find_device(kind)
        # Without versions: a device is one row, however many measurements it has.
        where = {name: columns[name] for name in ("machine",) if name in columns}
        self._add("devices", device_columns(device) | self._provenance(campaign, kind, where))
        return device

    def _provenance(self, campaign: str, device_kind: str, columns: Row) -> Row:
        return {
            "campaign": campaign,
            "machine": columns.get("machine", f"{self.origin.name} {device_kind}"),
            "versions": columns.get("versions", ""),
            "measured_at_s": UNKNOWN_TIME_S,
            "source": self.origin.url,
            "licence": self.origin.licence,
        }

    def _add(self, table: str, row: Row) -> None:
        """Add a row; a second row with the same key is skipped, unless it is equal."""
        key = tuple(row[name] for name in tables.TABLES[table].key)
        known = self.rows[table].setdefault(key, row)
        if known is not row and known != row:
            self.skip(f"{table}: a second measurement of the same thing")
