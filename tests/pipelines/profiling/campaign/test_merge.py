"""Merging of campaigns of several hosts into one folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from presage.errors import ProfilingError, TableError
from presage.features.tables import schemas as tables
from presage.features.tables.campaign import read_campaign
from presage.pipelines.profiling.campaign.campaign_tables import CampaignTables, lock_folder
from presage.pipelines.profiling.campaign.merge import merge

NODE = {
    "graph_digest": "g", "op": "aten.mm", "kind": "MatMul", "phase": "forward",
    "input_elements": 1, "output_elements": 1, "parameters": 1, "flops": 1, "bytes_moved": 1,
    "count": 1,
}  # fmt: skip
JOB = {
    "name": "mlp/w", "family": "mlp", "framework": "torch", "precision": "fp32",
    "optimizer": "sgd", "batch_size": 8, "iterations": 1, "input_elements": 1,
    "graph_digest": "g", "parameters": 1, "peak_live_bytes": 1,
}  # fmt: skip
WHERE = {"campaign": "c", "versions": "torch=2", "measured_at_s": 1.0, "device_kind": "cpu-2"}
RUN = WHERE | {
    "share": 1.0, "sharing_mode": "exclusive", "steps": 9, "step_time_median_s": 0.1,
    "step_time_p90_s": 0.1, "compute_utilization": 0.5, "memory_utilization": 0.1,
    "memory_peak_bytes": 9, "setup_s": 1.0, "foreign_load": 0.01, "failure": "",
}  # fmt: skip
DEVICE = WHERE | {
    "compute_capability": 0.0, "memory_bytes": 90, "cores": 2, "precisions": ["fp32"],
    "peak_flops_per_s": [1e9], "memory_bandwidth_bytes_per_s": 1e9, "op_overhead_s": 1e-6,
    "context_bytes": 1,
}  # fmt: skip


def campaign(folder: Path, machine: str, jobs: str, **run: Any) -> Path:
    folder.mkdir()
    at = CampaignTables(folder)
    at.add("nodes", [NODE])
    at.add("jobs", [{"job_id": job} | JOB for job in jobs])
    at.add("devices", [DEVICE | {"machine": machine}])
    at.add("executions", [RUN | run | {"job_id": job, "machine": machine} for job in jobs])
    at.write_missing()
    return folder


def test_the_merged_campaign_holds_the_measurements_of_all_hosts(tmp_path):
    hosts = [campaign(tmp_path / "a", "a", "xy"), campaign(tmp_path / "b", "b", "yz")]
    merged = merge(hosts, tmp_path / "all")
    read = read_campaign(tmp_path / "all")

    assert merged.rows == {"jobs": 3, "nodes": 1, "executions": 4, "colocations": 0, "devices": 2}
    assert merged.duplicates == 0
    assert set(read.jobs) == set("xyz")
    assert {(r["job_id"], r["machine"]) for r in read.executions.to_dict("records")} == {
        ("x", "a"), ("y", "a"), ("y", "b"), ("z", "b"),
    }  # fmt: skip


def test_merging_is_commutative_and_idempotent(tmp_path):
    a, b = campaign(tmp_path / "a", "a", "xy"), campaign(tmp_path / "b", "b", "yz")
    merge([a, b], tmp_path / "ab")
    merge([b, a], tmp_path / "ba")
    merge([tmp_path / "ab", a], tmp_path / "aba")

    for name in tables.CAMPAIGN_TABLES:
        bytes_of = {(tmp_path / m / f"{name}.parquet").read_bytes() for m in ("ab", "ba", "aba")}
        assert len(bytes_of) == 1, name


def test_the_quieter_of_two_equal_measurements_is_kept(tmp_path):
    loud = campaign(tmp_path / "loud", "m", "x", foreign_load=0.4, step_time_median_s=0.3)
    quiet = campaign(tmp_path / "quiet", "m", "x")
    failed = campaign(tmp_path / "failed", "m", "x", foreign_load=0.0, failure="crash")
    merged = merge([loud, failed, quiet], tmp_path / "all")
    (row,) = read_campaign(tmp_path / "all").executions.to_dict("records")

    assert merged.duplicates == 2
    assert row["step_time_median_s"] == 0.1


def test_a_measured_colocation_is_not_mixed_with_a_failed_one(tmp_path):
    def members(folder: Path, second_failed: str) -> Path:
        measured = not second_failed
        shared = WHERE | {
            "colocation_id": "x + y", "members": 2, "machine": "m", "share": 1.0, "fits": True,
            "sharing_mode": "time-slice", "steps": 9 * measured, "solo_step_time_s": 0.1,
            "step_time_median_s": 0.2 if measured else None, "slowdown": 2.0 if measured else None,
            "foreign_load": 0.02 if measured else None,  # not sampled
        }  # fmt: skip
        failures = ("", second_failed)
        at = CampaignTables(campaign(folder, "m", "xy"))
        at.add(
            "colocations",
            [
                shared | {"member": i, "job_id": "xy"[i], "failure": failure}
                for i, failure in enumerate(failures)
            ],
        )
        return folder

    merge([members(tmp_path / "f", "crash"), members(tmp_path / "m", "")], tmp_path / "all")
    rows = read_campaign(tmp_path / "all").colocations.to_dict("records")

    assert [(row["slowdown"], row["failure"]) for row in rows] == [(2.0, ""), (2.0, "")]


def test_one_job_with_two_graphs_is_refused(tmp_path):
    a, b = campaign(tmp_path / "a", "a", "x"), campaign(tmp_path / "b", "b", "")
    at = CampaignTables(b)
    at.add("jobs", [{"job_id": "x"} | JOB | {"graph_digest": "other"}])

    with pytest.raises(TableError, match=r"b: job 'x' has graph other, .*--retrace"):
        merge([a, b], tmp_path / "all")
    assert not (tmp_path / "all" / "jobs.parquet").exists()


def test_the_error_names_a_folder_without_campaign_or_one_in_use(tmp_path):
    a = campaign(tmp_path / "a", "a", "x")
    with pytest.raises(TableError, match=r"none/jobs.parquet: no such table"):
        merge([a, tmp_path / "none"], tmp_path / "all")
    with lock_folder(tmp_path / "all"), pytest.raises(ProfilingError, match="another campaign"):
        merge([a], tmp_path / "all")
