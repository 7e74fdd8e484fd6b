"""Measured campaigns, read from their tables as domain values."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from presage.errors import InvalidJobError, TableError
from presage.features.device.device import Device, Share
from presage.features.graph.op_graph import OpNode
from presage.features.graph.op_stats import OpStats, summarize
from presage.features.graph.step_memory import MemoryEstimate
from presage.features.job.job_description import Job, JobFeatures, memory_from_peak, public_version
from presage.features.placement import Placement
from presage.features.tables import schemas as tables

DeviceKey = tuple[str, str, str]  # kind, machine, campaign
COLOCATION = ["colocation_id", "machine", "campaign"]  # columns shared by all rows of a co-location


@dataclass(frozen=True)
class Campaign:
    """Tables of one campaign folder: jobs, devices, and what was measured.

    Jobs with an unknown graph (from an imported source) are left out, as are their executions and
    the co-locations that they are members of: a model cannot learn from them. ``scale_out`` has
    no rows if the folder has no such table.
    """

    folder: Path
    jobs: Mapping[str, JobFeatures]
    devices: Mapping[DeviceKey, Device]
    executions: pd.DataFrame
    colocations: pd.DataFrame
    scale_out: pd.DataFrame

    def placements(self, rows: pd.DataFrame) -> list[Placement]:
        """Return :meth:`placement` of each row; rows of equal jobs share the description."""
        names = ["job_id", "versions", "device_kind", "machine", "campaign"]
        jobs: dict[tuple[str, str], JobFeatures] = {}
        out = []
        for row in zip(*(rows[name] for name in (*names, "share", "sharing_mode")), strict=True):
            job_id, versions, *device, fraction, mode = row
            if (job_id, versions) not in jobs:
                jobs[job_id, versions] = self._job(job_id, versions)
            kind, machine, campaign = device
            on = self.devices[kind, machine, campaign]
            out.append(Placement(jobs[job_id, versions], on, Share(fraction, mode)))
        return out

    def placement(self, row: Mapping[Any, Any]) -> Placement:
        """Return the job, device and share that a row of `executions` or `colocations` measured.

        The job has the framework version that the row was measured with.
        """
        device = self.devices[row["device_kind"], row["machine"], row["campaign"]]
        share = Share(row["share"], row["sharing_mode"])
        return Placement(self._job(row["job_id"], row["versions"]), device, share)

    def _job(self, job_id: str, versions: str) -> JobFeatures:
        features = self.jobs[job_id]
        version = _framework_version(features.job.framework, versions)
        return replace(features, job=replace(features.job, framework_version=version))


def read_campaign(folder: Path) -> Campaign:
    """Read the campaign at ``folder``.

    Raises
    ------
    TableError
        A table is missing or breaks its schema; a row has an invalid job, share or device, or
        refers to a job, graph or device that no other row describes.
    """
    data = {
        name: tables.read(table, folder / f"{name}.parquet")
        for name, table in tables.CAMPAIGN_TABLES.items()
    }
    known = set(data["jobs"].column("job_id").to_pylist())
    stats = _stats(data["nodes"], _read_optional(tables.OP_STATS, folder), folder)
    jobs = _jobs(data["jobs"], stats, folder)
    devices = _devices(data["devices"], folder / "devices.parquet")
    executions = data["executions"].to_pandas()
    colocations = data["colocations"].to_pandas()
    scale_out = _read_optional(tables.SCALE_OUT, folder).to_pandas()
    measured = {"executions": executions, "colocations": colocations, "scale_out": scale_out}
    for name, frame in measured.items():
        path = folder / f"{name}.parquet"
        _check_known(frame["job_id"], known, "job", path)
        keys = list(zip(frame["device_kind"], frame["machine"], frame["campaign"], strict=True))
        _check_known(keys, devices, "device", path)
        if "share" not in frame:  # rows of `scale_out` use exclusive devices
            continue
        with _name_file_in_errors(path):
            for fraction, mode in set(zip(frame["share"], frame["sharing_mode"], strict=True)):
                Share(fraction, mode)
    executions = executions[executions["job_id"].isin(jobs)].reset_index(drop=True)
    together = colocations["job_id"].isin(jobs).groupby([colocations[c] for c in COLOCATION])
    colocations = colocations[together.transform("all")].reset_index(drop=True)
    scale_out = scale_out[scale_out["job_id"].isin(jobs)].reset_index(drop=True)
    return Campaign(folder, jobs, devices, executions, colocations, scale_out)


def _read_optional(table: tables.Table, folder: Path) -> pa.Table:
    """Return a table that only some folders have; without rows if this folder has none."""
    path = folder / f"{table.name}.parquet"
    return tables.read(table, path) if path.is_file() else table.schema.empty_table()


def job_features(row: Mapping[str, Any], stats: tuple[OpStats, ...]) -> JobFeatures:
    """Convert a row of `jobs` and the statistics of its graph to the input of predictors."""
    job = Job(
        job_id=row["job_id"],
        name=row["name"],
        family=row["family"],
        framework=row["framework"],
        precision=row["precision"],
        batch_size=row["batch_size"],
        iterations=row["iterations"],
        input_elements=row["input_elements"],
        graph_digest=row["graph_digest"],
        memory_format=row["memory_format"],
        loads_data=row["loads_data"],
    )
    return JobFeatures(job, stats, row["parameters"], _memory(row))


def _memory(row: Mapping[str, Any]) -> MemoryEstimate:
    components = {field.name: row[field.name] for field in fields(MemoryEstimate)}
    if None in components.values():  # the row is from an older file
        return memory_from_peak(row["parameters"], row["peak_live_bytes"])
    return MemoryEstimate(**components)


def _framework_version(framework: str, versions: str) -> str:
    """Return the version in the word "torch=1.12" of ``versions``; "" without such a word."""
    words = dict(word.split("=", 1) for word in versions.split() if "=" in word)
    return public_version(words.get(framework, ""))


def _stats(nodes: pa.Table, op_stats: pa.Table, folder: Path) -> dict[str, tuple[OpStats, ...]]:
    """Return the statistics of every graph, summed from its nodes or as reported."""
    graphs: dict[str, list[OpNode]] = {}
    for row in nodes.to_pylist():
        graphs.setdefault(row.pop("graph_digest"), []).append(OpNode(**row))
    with _name_file_in_errors(folder / "nodes.parquet"):
        stats = {digest: summarize(graph) for digest, graph in graphs.items()}
    reported: dict[str, list[OpStats]] = {}
    with _name_file_in_errors(folder / "op_stats.parquet"):
        for row in op_stats.to_pylist():
            reported.setdefault(row.pop("graph_digest"), []).append(OpStats(**row))
    return stats | {digest: tuple(rows) for digest, rows in reported.items()}


def _jobs(
    jobs: pa.Table, stats: Mapping[str, tuple[OpStats, ...]], folder: Path
) -> dict[str, JobFeatures]:
    rows = [row for row in jobs.to_pylist() if row["graph_digest"]]
    _check_known([row["graph_digest"] for row in rows], stats, "graph", folder / "jobs.parquet")
    with _name_file_in_errors(folder / "jobs.parquet"):
        return {row["job_id"]: job_features(row, stats[row["graph_digest"]]) for row in rows}


def _devices(devices: pa.Table, path: Path) -> dict[DeviceKey, Device]:
    with _name_file_in_errors(path):
        return {
            (row["device_kind"], row["machine"], row["campaign"]): _device(row)
            for row in devices.to_pylist()
        }


@contextmanager
def _name_file_in_errors(path: Path) -> Iterator[None]:
    """Convert an error about an invalid value into one that names the file."""
    try:
        yield
    except (InvalidJobError, ValueError) as error:
        raise TableError(f"{path}: {error}; restore it from git, or measure it again") from error


def _device(row: Mapping[str, Any]) -> Device:
    return Device(
        kind=row["device_kind"],
        compute_capability=row["compute_capability"],
        memory_bytes=row["memory_bytes"],
        cores=row["cores"],
        peak_flops_per_s=dict(zip(row["precisions"], row["peak_flops_per_s"], strict=True)),
        memory_bandwidth_bytes_per_s=row["memory_bandwidth_bytes_per_s"],
        op_overhead_s=row["op_overhead_s"],
        context_bytes=row["context_bytes"],
    )


def _check_known(
    keys: Sequence[Any] | pd.Series, known: Container[Any], what: str, path: Path
) -> None:
    for position, key in enumerate(keys):
        if key not in known:
            raise TableError(
                f"{path}: row {position} refers to {what} {key!r}, which no row describes; "
                "restore the whole campaign folder from git, or measure it again"
            )
