"""Reported outcomes as the tables of a campaign: one row per job, not per run.

A job that ran a thousand times is one example. Its row holds the medians of its runs, weighted by
recency; every run is in the table ``outcomes``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from itertools import chain
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from presage.features.device.device import Device
from presage.features.graph.op_stats import OpStats
from presage.features.quantities.quantity_registry import RUNTIME, STEP_TIME, solo_columns
from presage.features.tables import schemas as tables
from presage.features.tables.schemas import REPORTED_LICENCE, REPORTED_SOURCE
from presage.pipelines.reported.recency import Recency, current_medians
from presage.pipelines.reported.reported_outcomes import ReportedJob

CAMPAIGN = "outcomes"
TABLES = {
    table.name: table
    for table in (*tables.CAMPAIGN_TABLES.values(), tables.OP_STATS, tables.OUTCOMES)
}
STEP = STEP_TIME.column
_OP_FIELDS = [field.name for field in fields(OpStats)]

Row = dict[str, Any]
Member = tuple[str, float, str]  # job_id, fraction and mode of its share


def learnt_columns() -> list[str]:
    """Return the columns of solo quantities that tables of outcomes and executions hold."""
    held = tables.OUTCOMES.schema.names
    return [
        name for name in solo_columns() if name in held and name in tables.EXECUTIONS.schema.names
    ]


def outcome_tables(
    rows: pd.DataFrame, jobs: Sequence[ReportedJob], devices: Mapping[str, Device], recency: Recency
) -> dict[str, pa.Table]:
    """Return checked tables of the plausible outcomes, independent of their order.

    ``rows`` are of :attr:`presage.pipelines.reported.reported_outcomes.Reported.rows`.
    """
    reported = _most_reported(rows, jobs)
    runs, members = _runs(rows, jobs, reported, devices)
    solo = runs[runs["colocation_id"] == ""]
    found: dict[str, list[Row] | pd.DataFrame] = {
        "jobs": [_job_row(job) for job in reported.values()],
        "op_stats": _op_stats_rows(reported),
        "devices": _device_rows(runs, devices),
        "executions": _executions(solo, devices, recency),
        "colocations": _colocation_rows(runs, members, recency),
        "outcomes": runs,
    }
    return {name: _table(table, found.get(name, [])) for name, table in TABLES.items()}


def _table(table: tables.Table, rows: list[Row] | pd.DataFrame) -> pa.Table:
    source = f"{table.name}.parquet"
    if isinstance(rows, pd.DataFrame):
        return tables.from_frame(table, rows, source=source)
    return tables.from_rows(table, rows, source=source)


def _most_reported(rows: pd.DataFrame, jobs: Sequence[ReportedJob]) -> dict[str, ReportedJob]:
    """Return the most frequently reported description of every job, by its id."""
    colocated_jobs = chain.from_iterable(rows["colocated_jobs"])
    counts = Counter([*rows["job"], *(job for job, _, _ in colocated_jobs)])
    reports: Counter[tuple[str, str]] = Counter()  # the framework version does not distinguish jobs
    for job, count in counts.items():
        reports[jobs[job].features.job.job_id, jobs[job].name] += count
    described = {(jobs[job].features.job.job_id, jobs[job].name): jobs[job] for job in counts}
    out: dict[str, ReportedJob] = {}
    for key in sorted(reports, key=lambda key: (key[0], -reports[key], key[1])):
        out.setdefault(key[0], described[key])
    return out


def _runs(
    rows: pd.DataFrame,
    jobs: Sequence[ReportedJob],
    reported: Mapping[str, ReportedJob],
    devices: Mapping[str, Device],
) -> tuple[pd.DataFrame, dict[str, list[Member]]]:
    """Return rows of ``outcomes``, and the members of every co-location."""
    job_ids = [job.features.job.job_id for job in jobs]
    families = {job_id: job.features.job.family for job_id, job in reported.items()}
    members: dict[str, list[Member]] = {}
    more = []
    read = ("job", "machine", "share", "sharing_mode", "colocated_jobs")
    for job, machine, share, mode, others in zip(*(rows[name] for name in read), strict=True):
        job_id, kind = job_ids[job], devices[machine].kind
        colocation_id, size = "", 1
        if others:
            colocated_jobs = [(job_ids[other], of, its_mode) for other, of, its_mode in others]
            together = sorted([(job_id, share, mode), *colocated_jobs])
            colocation_id, size = _colocation_id(together, kind), len(together)
            members[colocation_id] = together
        more.append((job_id, families[job_id], kind, colocation_id, size))
    names = ["job_id", "family", "device_kind", "colocation_id", "members"]
    runs = rows.join(pd.DataFrame(more, columns=names, index=rows.index))
    measured = [*learnt_columns(), RUNTIME.column]
    runs[measured] = runs[measured].astype(np.float64)
    return runs.sort_values("idempotency_key"), members


def _colocation_id(members: Sequence[Member], device_kind: str) -> str:
    parts = (f"{job_id} {share!r} {mode}" for job_id, share, mode in members)
    return f"{' + '.join(parts)} @ {device_kind}"


def _newest(
    runs: pd.DataFrame, group: Sequence[str], values: Sequence[str], recency: Recency
) -> pd.DataFrame:
    """Return a row per group: medians of the successful runs, else the last failure."""
    ran = runs[runs["failure"] == ""]
    failed = runs[runs["failure"] != ""]
    keys = pd.MultiIndex.from_frame(failed[group])
    counted = pd.concat([ran, failed[~keys.isin(pd.MultiIndex.from_frame(ran[group]))]])
    last = counted.sort_values(["measured_at_s", "versions", "failure"])
    last = last.drop_duplicates(group, keep="last")
    medians = current_medians(ran, group, values, recency).reset_index()
    kept = [*group, "measured_at_s", "versions", "failure"]
    return last[kept].merge(medians, "left", on=list(group)).sort_values(list(group))


def _executions(
    solo: pd.DataFrame, devices: Mapping[str, Device], recency: Recency
) -> pd.DataFrame:
    """Return solo jobs, including those that only failed."""
    # A runtime without a step time is not used: it includes an unknown setup time.
    has_values = solo["failure"].ne("") | solo[learnt_columns()].notna().any(axis=1)
    group = ["job_id", "device_kind", "machine", "share", "sharing_mode"]
    rows = _newest(solo[has_values], group, learnt_columns(), recency)
    memory = [float(devices[machine].memory_bytes) for machine in rows["machine"]]
    rows["memory_utilization"] = rows["memory_peak_bytes"] / memory
    return rows.assign(**_UNREPORTED, **_PROVENANCE)


def _colocation_rows(
    runs: pd.DataFrame, members: Mapping[str, Sequence[Member]], recency: Recency
) -> list[Row]:
    """Return every member of every reported co-location; unreported values are empty."""
    ran = runs[(runs["colocation_id"] == "") & (runs["failure"] == "")]
    # A member's share is also that of its solo run: else the share would count as a slowdown.
    solo = current_medians(ran, ["job_id", "device_kind", "share"], [STEP], recency)[STEP]
    group = ["colocation_id", "machine", "device_kind", "job_id", "share", "sharing_mode"]
    together = runs[runs["colocation_id"] != ""]
    measured: dict[tuple[str, str], dict[Member, Row]] = {}
    for row in _records(_newest(together, group, [STEP], recency)):
        of_colocation = measured.setdefault((row["colocation_id"], row["machine"]), {})
        of_colocation[row["job_id"], row["share"], row["sharing_mode"]] = row
    out = []
    for (colocation_id, machine), of_member in measured.items():
        kind = next(iter(of_member.values()))["device_kind"]
        shared = {
            "colocation_id": colocation_id,
            "machine": machine,
            "device_kind": kind,
            "members": len(members[colocation_id]),
            "fits": all(row["failure"] != "out-of-memory" for row in of_member.values()),
            "measured_at_s": max(row["measured_at_s"] for row in of_member.values()),
        }
        for position, member in enumerate(members[colocation_id]):
            job_id, share, mode = member
            # Of equal members the first represents all: reports do not distinguish them.
            row = of_member.pop(member, {})
            step_s, solo_s = row.get(STEP), solo.get((job_id, kind, share))
            solo_s = None if solo_s is None or np.isnan(solo_s) else float(solo_s)
            out.append(
                shared
                | {
                    "member": position,
                    "job_id": job_id,
                    "share": share,
                    "sharing_mode": mode,
                    "steps": 0,
                    STEP: step_s,
                    "solo_step_time_s": solo_s,
                    "slowdown": step_s / solo_s if step_s and solo_s else None,
                    "foreign_load": None,
                    "failure": row.get("failure", ""),
                    "versions": row.get("versions", ""),
                }
                | _PROVENANCE
            )
    return out


def _job_row(reported: ReportedJob) -> Row:
    features, job = reported.features, asdict(reported.features.job)
    del job["framework_version"]  # differs between runs
    return (
        job
        | asdict(features.memory)
        | {
            "optimizer": "not said",
            "parameters": features.parameters,
            "peak_live_bytes": features.peak_live_bytes,
        }
    )


def _op_stats_rows(reported: Mapping[str, ReportedJob]) -> list[Row]:
    graphs = {job.features.job.graph_digest: job.features.op_stats for job in reported.values()}
    return [
        {"graph_digest": digest} | {name: getattr(op, name) for name in _OP_FIELDS}
        for digest, ops in sorted(graphs.items())
        for op in ops
    ]


def _device_rows(runs: pd.DataFrame, devices: Mapping[str, Device]) -> list[Row]:
    """Return device rows; of several data sheets of a kind, the one with most reports is last."""
    by_machine = ((str(name), of) for name, of in runs.groupby("machine")["measured_at_s"])
    found = [
        (devices[machine].kind, len(times), machine, float(times.max()))
        for machine, times in by_machine
    ]
    out = []
    for kind, _, machine, newest_s in sorted(found):
        sheet = asdict(devices[machine])
        peaks = sorted(sheet.pop("peak_flops_per_s").items())
        del sheet["kind"]
        row = {"device_kind": kind, "machine": machine, "measured_at_s": newest_s, "versions": ""}
        row |= {"precisions": [name for name, _ in peaks]}
        row |= {"peak_flops_per_s": [flops for _, flops in peaks]}
        out.append(sheet | row | _PROVENANCE)
    return out


_PROVENANCE: Row = {
    "campaign": CAMPAIGN,
    "source": REPORTED_SOURCE,
    "licence": REPORTED_LICENCE,
}
_UNREPORTED: Row = {"steps": 0, "step_time_p90_s": None, "setup_s": None, "foreign_load": None}


def _records(frame: pd.DataFrame) -> list[Row]:
    """Return rows as mappings; missing values are None."""
    return [
        {str(k): None if v is None or v != v else v for k, v in row.items()}  # noqa: PLR0124 - NaN
        for row in frame.to_dict("records")
    ]
