"""`presage outcomes ingest`: training tables from reported outcomes, and quarantine."""

from __future__ import annotations

import json
import random
import shutil
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from presage.cli.serving.outcomes import app
from presage.errors import ConfigError, OutcomeLogError, TableError
from presage.features.device.device import Share
from presage.features.tables.campaign import read_campaign
from presage.models.training.splits import job_folds
from presage.pipelines.reported.outcome_tables import TABLES
from presage.pipelines.reported.recency import DAY_S, Recency
from presage.pipelines.reported.withdrawn import Withdrawal, read_withdrawals
from presage.pipelines.stages.featurize import featurize_interference, featurize_solo
from presage.pipelines.stages.ingest import ingest
from presage.pipelines.stages.stage import read_params
from presage.serving.client.client import PresageClient
from presage.serving.outcomes.outcome_log import OutcomeLog
from presage.serving.v1 import prediction_pb2 as pb
from tests.features.examples import device
from tests.pipelines.reported.outcome_examples import (
    NOON_S,
    RECENCY,
    TURNS,
    bytes_of,
    colocated_outcome,
    ingested,
    log_of,
    messages,
    outcome,
    raw_log,
    slower,
    small_job,
    table,
)
from tests.serving.support.processes import serving
from tests.support.slow_tests import examples

ROOT = Path(__file__).parents[3]


@pytest.fixture
def to(tmp_path):
    return tmp_path / "tables"


@pytest.fixture
def log(tmp_path):
    return tmp_path / "log.db"


def only(rows):
    (row,) = rows.to_dict("records")
    return row


def quarantined(folder):
    return [json.loads(line) for line in (folder / "quarantine.jsonl").read_text().splitlines()]


# Estimates --------------------------------------------------------------------------------------


def test_solo_runs_of_one_job_become_one_row_of_medians(log, to):
    runs = [outcome(f"k{i}", step_time_median_s=s) for i, s in enumerate((0.03, 0.01, 0.02))]
    done = ingested(to, log_of(log, runs))

    row = only(table(to, "executions"))
    assert row["step_time_median_s"] == 0.02
    assert (row["compute_utilization"], row["memory_peak_bytes"]) == (0.5, 2**26)
    assert row["memory_utilization"] == 2**26 / device().memory_bytes
    assert (row["device_kind"], row["share"], row["sharing_mode"]) == ("example", 1.0, "exclusive")
    assert (row["campaign"], row["source"], row["measured_at_s"]) == (
        "outcomes", "presage outcomes", NOON_S,
    )  # fmt: skip
    assert done.outcomes == done.rows["outcomes"] == 3
    assert (done.rows["jobs"], done.quarantined) == (1, {})


def test_the_row_of_a_changed_job_follows_most_of_its_newest_runs(log, to):
    """The number and time of its earlier runs do not matter."""
    runs = [outcome(f"then {i}", age_days=0.2, step_time_median_s=0.01) for i in range(20)]
    runs += [outcome(f"now {i}", step_time_median_s=0.013) for i in range(2)]
    ingested(to, log_of(log, runs))

    assert only(table(to, "executions"))["step_time_median_s"] == 0.013


def test_newer_runs_count_for_more(log, to):
    old = [outcome(f"old {i}", age_days=30, step_time_median_s=0.01) for i in range(7)]
    ingested(to, log_of(log, [*old, outcome("new", step_time_median_s=0.013)]))

    # Seven of three half-lives are seven eighths of one.
    assert only(table(to, "executions"))["step_time_median_s"] == 0.013


def test_a_slowdown_is_relative_to_solo_and_null_for_an_unreported_member(log, to):
    solo_run = outcome("alone", "mlp", step_time_median_s=0.01)
    colocated = colocated_outcome("beside", "mlp", "vgg", step_time_median_s=0.015)
    ingested(to, log_of(log, [solo_run, colocated]))

    rows = {row["job_id"]: row for row in table(to, "colocations").to_dict("records")}
    mlp = rows.pop(only(table(to, "executions"))["job_id"])
    (vgg,) = rows.values()
    assert mlp["slowdown"] == mlp["step_time_median_s"] / 0.01 == 1.5
    assert (mlp["members"], mlp["fits"], mlp["sharing_mode"]) == (2, True, "time-slice")
    assert vgg["slowdown"] is None or vgg["slowdown"] != vgg["slowdown"]


def test_members_that_report_each_other_are_one_colocation(log, to):
    rows = [colocated_outcome("a", "mlp", "vgg"), colocated_outcome("b", "vgg", "mlp")]
    ingested(to, log_of(log, rows))

    members = table(to, "colocations")
    assert members["colocation_id"].nunique() == 1
    assert members["step_time_median_s"].notna().all()
    assert members["slowdown"].isna().all()  # no solo run was reported


def test_equal_members_share_one_report(log, to):
    ingested(to, log_of(log, [colocated_outcome("a", "mlp", "mlp", "vgg")]))

    members = table(to, "colocations")
    assert len(members) == 3
    assert members["step_time_median_s"].notna().sum() == 1


def test_a_run_time_without_steps_gives_no_step_time(log, to):
    row = outcome(
        "k", step_time_median_s=None, compute_utilization=None, memory_peak_bytes=None, runtime_s=9
    )
    done = ingested(to, log_of(log, [row]))

    assert table(to, "executions").empty
    assert only(table(to, "outcomes"))["runtime_s"] == 9
    assert done.unused == 1


def test_failures_are_kept_only_of_jobs_that_never_succeeded(log, to):
    nothing: dict[str, Any] = dict.fromkeys(
        ("compute_utilization", "memory_peak_bytes", "step_time_median_s")
    )
    rows = [
        outcome("a", "mlp", failure="out-of-memory", **nothing),
        outcome("b", "vgg", failure="crash", **nothing),
        outcome("c", "vgg"),
        colocated_outcome("d", "mlp", "vgg", failure="out-of-memory", **nothing),
    ]
    done = ingested(to, log_of(log, rows))

    assert sorted(table(to, "executions")["failure"]) == ["", "out-of-memory"]
    assert not table(to, "colocations")["fits"].any()
    assert sorted(table(to, "outcomes")["failure"]) == [
        "",
        "crash",
        "out-of-memory",
        "out-of-memory",
    ]
    assert done.failed == 3


def test_every_outcome_is_joined_to_the_release_of_its_forecast(log, to):
    ingested(to, log_of(log, [outcome("agent/7", release_id="cafe")], by="node-3"))

    row = only(table(to, "outcomes"))
    assert (row["idempotency_key"], row["release_id"], row["reported_by"]) == (
        "agent/7", "cafe", "node-3",
    )  # fmt: skip
    assert (row["reported_job_id"], row["family"], row["device_kind"]) == (
        "run agent/7", "family", "example",
    )  # fmt: skip
    assert (row["measured_at_s"], row["step_time_median_s"], row["iterations"]) == (
        NOON_S, 0.01, 100,
    )  # fmt: skip


def test_a_missing_or_future_end_time_is_replaced_by_the_report_time(log, to):
    ahead_s, boot_s = time.time() + 1e6, 1234.5
    rows = [outcome(k, finished_at_unix_s=s) for k, s in (("a", 0), ("b", ahead_s), ("c", boot_s))]
    before_s = time.time()
    ingested(to, log_of(log, rows))

    at_s = table(to, "outcomes")["measured_at_s"]
    assert at_s.between(before_s, time.time()).all()


def test_the_folder_is_a_campaign_that_featurize_reads(log, to):
    rows = [outcome("a", "mlp"), colocated_outcome("b", "mlp", "vgg", step_time_median_s=0.02)]
    ingested(to, log_of(log, rows))
    campaign = read_campaign(to)

    solo, victims = featurize_solo(campaign), featurize_interference(campaign)
    assert len(solo) == 2  # the co-located job without a measurement has a row
    assert solo["step_time_median_s"].notna().sum() == 1
    assert sorted(victims["slowdown"].dropna()) == [2.0]
    sent = rows[0].job
    (read,) = (j for j in campaign.jobs.values() if j.job.name == "mlp")
    assert (read.op_stats, read.memory, read.parameters) == (
        sent.op_stats, sent.memory, sent.parameters,
    )  # fmt: skip


# Which jobs are the same ------------------------------------------------------------------------


def test_a_job_is_identified_by_its_features_and_not_by_its_id(log, to):
    rows = [outcome(f"k{i}", job=small_job(run=f"run {i}", iterations=i + 1)) for i in range(9)]
    rows.append(outcome("other", job=small_job(batch_size=64)))
    ingested(to, log_of(log, rows))

    runs = table(to, "outcomes")
    assert runs["reported_job_id"].nunique() == 10
    assert sorted(runs["job_id"].value_counts()) == [1, 9]


def test_a_job_of_a_campaign_keeps_its_name_and_fold(log, to):
    name = "mlp/w128-d2/b64/sgd"
    campaign = read_campaign(ROOT / "data/profiles/cpu-2")
    measured, (on, *_) = campaign.jobs[name], campaign.devices.values()
    reported = replace(measured, job=replace(measured.job, job_id="tuesday", family="my nets"))
    ingest(
        [log_of(log, [outcome("k", job=reported, device=on, memory_peak_bytes=2**29)])], to,
        recency=RECENCY, profiles=ROOT / "data/profiles", pretrained=None,
    )  # fmt: skip

    row = only(table(to, "outcomes"))
    assert (row["job_id"], row["reported_job_id"], row["family"]) == (name, "tuesday", "mlp")
    assert job_folds([row["job_id"]]) == job_folds([name])
    assert read_campaign(to).jobs[name].op_stats == measured.op_stats


def test_a_device_without_a_data_sheet_is_found_in_campaigns_or_the_catalogue(log, to, tmp_path):
    profiles = tmp_path / "profiles"
    profiles.mkdir()
    for name in ("cpu-2", "cpu-2-zoo"):  # without measurements of `make run`
        (profiles / name).symlink_to(ROOT / "data/profiles" / name)
    report = pb.ReportOutcomesRequest()
    for key, kind in (("a", "cpu-2"), ("b", "NVIDIA V100 SXM2 16GB"), ("c", "other kind")):
        (key_and_bytes,) = messages([outcome(key, memory_peak_bytes=2**29)])
        row = pb.Outcome.FromString(key_and_bytes[1])
        row.device.CopyFrom(pb.Device(kind=kind))
        report.outcomes.append(row)
    rows = [(row.idempotency_key, row.SerializeToString()) for row in report.outcomes]
    done = ingest(
        [raw_log(log, rows)], to,
        recency=RECENCY, profiles=profiles, pretrained=None,
    )  # fmt: skip

    known = read_campaign(ROOT / "data/profiles/cpu-2-zoo").devices.values()
    read = {d.kind: d for d in read_campaign(to).devices.values()}
    assert read["cpu-2"] in known
    assert len(read) == 2
    assert done.quarantined == {"invalid": 1}


# What cannot be ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"step_time_median_s": 1e-9}, "faster than the device can"),
        ({"step_time_median_s": 1e6}, "slower by far than the device is"),
        ({"step_time_median_s": 5.0, "runtime_s": 4.0}, "a step longer than the whole job"),
        ({"memory_peak_bytes": 2**60}, "more memory than there is"),
        ({"memory_peak_bytes": 1000}, "less memory than it must hold"),
        ({"memory_peak_bytes": 0}, "less memory than it must hold"),
        ({"compute_utilization": 0.0}, "steps on an idle device"),
        ({"step_time_median_s": 0.0}, "faster than the device can"),
    ],
)
def test_physically_impossible_outcomes_are_quarantined_with_one_line_of_reason(
    log, to, changes, rule
):
    rows = [outcome("bad", **changes), outcome("good")]
    done = ingested(to, log_of(log, rows, by="node-3"))

    (said,) = quarantined(to)
    assert said["rule"] == rule
    assert "\n" not in said["reason"]
    assert (said["idempotency_key"], said["reported_by"]) == ("bad", "node-3")
    assert (said["log"], said["position"]) == (str(log), 1)
    assert only(table(to, "outcomes"))["idempotency_key"] == "good"
    assert done.quarantined == {rule: 1}


def test_a_job_whose_work_overflows_is_quarantined(log, to):
    (op,) = small_job().op_stats
    vast = replace(small_job(), op_stats=tuple(replace(op, flops=1e308, phase=p)
                                           for p in ("forward", "backward")))  # fmt: skip
    rows = [outcome("a", job=vast), outcome("b", colocated_jobs=((vast, TURNS),))]

    assert ingested(to, log_of(log, rows)).quarantined == {"no such job or device": 2}


def test_zeros_of_a_job_that_failed_at_once_are_not_measurements(log, to):
    row = outcome("a", failure="crash", compute_utilization=0.0, memory_peak_bytes=0,
                  step_time_median_s=0.0)  # fmt: skip

    assert ingested(to, log_of(log, [row])).quarantined == {}


def test_a_row_with_invalid_text_does_not_hide_others(log, to):
    log_of(log, [outcome("a")])
    with closing(sqlite3.connect(log)) as database:
        for key, by, at in (("x'ff'", "x'fe'", "1.0"), ("'b'", "'me'", "9e999")):
            message = f"x'{messages([outcome('b')])[0][1].hex()}'"
            database.execute(
                "INSERT INTO outcomes (idempotency_key, received_at_unix_s, reported_by, message) "
                f"VALUES (CAST({key} AS TEXT), {at}, CAST({by} AS TEXT), {message})"
            )
        database.commit()
    done = ingested(to, log)

    assert done.quarantined == {"invalid": 2}
    assert only(table(to, "outcomes"))["idempotency_key"] == "a"


def test_the_error_names_a_missing_log_and_the_tables_stay(log, to, tmp_path):
    ingested(to, log_of(log, [outcome("a")]))
    before = bytes_of(to)

    with pytest.raises(OutcomeLogError, match=r"other\.db cannot be read"):
        ingested(to, log, tmp_path / "other.db")
    assert bytes_of(to) == before


def test_a_folder_of_other_files_is_not_replaced(log, tmp_path):
    log_of(log, [outcome("a")])

    with pytest.raises(TableError, match=r"unknown file 'log\.db', .* another folder"):
        ingested(tmp_path, log)
    assert log.exists()


# Several logs, again and again ------------------------------------------------------------------


def test_duplicates_of_replicas_count_once_and_conflicting_keys_do_not_count(tmp_path, to):
    same, changed = outcome("same"), outcome("changed")
    one = log_of(tmp_path / "a.db", [same, changed])
    two = log_of(tmp_path / "b.db", [same, slower(changed, 2), outcome("other", "vgg")])
    done = ingested(to, one, two)

    assert sorted(table(to, "outcomes")["idempotency_key"]) == ["other", "same"]
    assert (done.outcomes, done.duplicates) == (5, 1)
    assert done.quarantined == {"two outcomes of one key": 2}
    assert [(row["log"][-4:], row["position"]) for row in quarantined(to)] == [
        ("a.db", 2), ("b.db", 2),
    ]  # fmt: skip


def test_ingesting_again_only_adds_new_outcomes(log, tmp_path, to):
    ingested(to, log_of(log, [outcome("a"), colocated_outcome("b", "mlp", "vgg")]))
    first = bytes_of(to)
    ingested(to, log)
    assert bytes_of(to) == first

    log_of(log, [outcome("c", "vgg")])
    ingested(to, log)
    ingested(tmp_path / "fresh", log)
    assert bytes_of(to) == bytes_of(tmp_path / "fresh") != first


NAMES = st.sampled_from(["mlp", "vgg", "gnn"])
MAYBE_S = st.none() | st.floats(1e-6, 2)


@st.composite
def reports(draw):
    """Return a strategy for outcomes of few jobs, solo and co-located, on two data sheets."""
    out = []
    for i in range(draw(st.integers(0, 12))):
        colocated = draw(st.lists(NAMES, max_size=2))
        share = draw(st.sampled_from([TURNS, Share(0.5, "mps")])) if colocated else Share()
        out.append(
            outcome(
                f"k{i}",
                job=small_job(draw(NAMES), framework_version=draw(st.sampled_from(["", "2.13.0"])),
                          iterations=draw(st.integers(1, 2))),
                device=device(cores=draw(st.sampled_from([1, 2]))),
                share=share,
                colocated_jobs=tuple((small_job(name), share) for name in colocated),
                age_days=draw(st.floats(0, 100)),
                step_time_median_s=draw(MAYBE_S),
                compute_utilization=draw(st.none() | st.floats(0, 1)),
                runtime_s=draw(st.none() | st.floats(0, 5)),
                failure=draw(st.sampled_from(["", "", "crash", "out-of-memory"])),
            )
        )  # fmt: skip
    return out


@settings(max_examples=examples(15), deadline=None)
@given(rows=reports(), order=st.randoms(use_true_random=False), parts=st.integers(1, 3))
def test_any_order_and_any_split_over_logs_give_the_same_tables(
    tmp_path_factory, rows, order, parts
):
    tmp_path = tmp_path_factory.mktemp("law")
    one = log_of(tmp_path / "one.db", rows)
    _at_noon(one)
    shuffled = order.sample(rows, len(rows))
    logs = []
    for part in range(parts):
        of_part = shuffled[part::parts] + order.sample(rows, len(rows) // 3)  # some are in two
        logs.append(log_of(tmp_path / f"{part}.db", of_part))
        _at_noon(logs[-1])
    ingested(tmp_path / "whole", one)
    ingested(tmp_path / "split", *order.sample(logs, len(logs)))

    whole, split = bytes_of(tmp_path / "whole"), bytes_of(tmp_path / "split")
    assert {n: b for n, b in whole.items() if n.endswith("parquet")} == {
        n: b for n, b in split.items() if n.endswith("parquet")
    }
    read_campaign(tmp_path / "split")
    shutil.rmtree(tmp_path)


def _at_noon(log):
    """Set one receive time for a log, so that a split over logs does not change it."""
    with closing(sqlite3.connect(log)) as database:
        database.execute("DROP TRIGGER never_changed")
        database.execute("UPDATE outcomes SET received_at_unix_s = ?", (NOON_S + 60,))
        database.commit()


@st.composite
def any_bytes(draw):
    """Return a strategy for bytes: random ones, or an outcome with a cut, flip or new field."""
    whole = messages([colocated_outcome("k", "mlp", "vgg")])[0][1]
    kind = draw(st.sampled_from(["bytes", "cut", "flip", "field"]))
    if kind == "bytes":
        return draw(st.binary(max_size=200))
    at = draw(st.integers(0, len(whole) - 1))
    if kind == "cut":
        return whole[:at]
    if kind == "flip":
        return whole[:at] + bytes([whole[at] ^ draw(st.integers(1, 255))]) + whole[at + 1 :]
    row = pb.Outcome.FromString(whole)
    number = draw(st.floats() | st.sampled_from([5e-324, 1e308, -0.0]))
    huge = draw(st.sampled_from([0, 1, 2**62, 2**63 - 1, -1]))
    edit = draw(st.integers(0, 9))
    sheet, op = row.device.data_sheet, row.job.op_stats[0]
    if edit == 0:
        row.step_time_median_s = number
    elif edit == 1:
        sheet.memory_bandwidth_bytes_per_s = number
    elif edit == 2:
        sheet.peak_flops_per_s["fp32"] = number
    elif edit == 3:
        row.device.share.fraction = number
        row.ClearField("share")
    elif edit == 4:
        op.flops = op.bytes_moved = number
    elif edit == 5:
        op.input_elements = op.output_elements = huge
        row.job.op_stats.append(op)
    elif edit == 6:
        row.memory_peak_bytes = sheet.memory_bytes = huge
    elif edit == 7:
        row.job.memory.activation_bytes = huge
    elif edit == 8:
        row.finished_at_unix_s = number
    else:
        row.job.framework = draw(st.text(max_size=20))
    return row.SerializeToString()


@settings(max_examples=examples(25), deadline=None)
@given(drawn=st.lists(any_bytes(), min_size=1, max_size=20))
def test_any_row_is_used_or_quarantined(tmp_path_factory, drawn):
    folder = tmp_path_factory.mktemp("bytes")
    rows = [(f"k{i}", _renamed(message, f"k{i}")) for i, message in enumerate(drawn)]
    log = raw_log(folder / "log.db", [*rows, *messages([outcome("good", "vgg")])])
    done = ingested(folder / "tables", log)

    assert done.rows["outcomes"] + sum(done.quarantined.values()) == len(drawn) + 1
    assert "good" in set(table(folder / "tables", "outcomes")["idempotency_key"])
    assert len(quarantined(folder / "tables")) == sum(done.quarantined.values())
    solo = featurize_solo(read_campaign(folder / "tables"))
    full = solo[[name for name in solo if str(name).startswith("full.")]].to_numpy()
    assert np.isfinite(full).all()
    shutil.rmtree(folder)


def _renamed(message, key):
    """Return a valid outcome with the key that it has in the log."""
    try:
        row = pb.Outcome.FromString(message)
    except DecodeError:
        return message
    row.idempotency_key = key
    return row.SerializeToString()


GIVEN = {"half_life_days": 30, "most_weight": 4, "newest_runs": 3}

# Processes --------------------------------------------------------------------------------------

AGAIN = """
import sys
from pathlib import Path
from tests.pipelines.reported.outcome_examples import ingested
print("ready", flush=True)
while True:
    for log in sys.argv[2:]:
        ingested(Path(sys.argv[1]), Path(log))
"""


def test_a_kill_leaves_the_old_or_the_new_tables(tmp_path, to):
    one = log_of(tmp_path / "a.db", [outcome("a")])
    two = log_of(tmp_path / "b.db", [outcome("b", "vgg"), outcome("c", "gnn")])
    whole = []
    for log in (one, two):
        ingested(to, log)
        whole.append(bytes_of(to))
    rng = random.Random(0)
    for _ in range(4):
        child = subprocess.Popen(
            [sys.executable, "-c", AGAIN, str(to), str(one), str(two)],
            stdout=subprocess.PIPE, cwd=ROOT, text=True,
        )  # fmt: skip
        with child:
            try:
                assert child.stdout is not None
                assert child.stdout.readline() == "ready\n"
                until_s = time.monotonic() + rng.uniform(0.1, 0.6)
                while time.monotonic() < until_s:
                    assert table(to, "outcomes")["idempotency_key"].iloc[0] in "ab"
            finally:
                child.kill()
        assert bytes_of(to) in whole


def test_a_log_is_read_during_appends(log, to):
    with closing(OutcomeLog(log)) as writer:
        counts = []
        for i in range(5):
            writer.append(messages([outcome(f"k{i}")]), reported_by="").result()
            counts.append(ingested(to, log).outcomes)
    assert counts == [1, 2, 3, 4, 5]


def test_reports_of_a_client_to_a_server_are_in_the_tables(tmp_path, log, to):
    rows = [outcome("a"), colocated_outcome("b", "mlp", "vgg", step_time_median_s=0.02)]
    with serving(
        "--release", ROOT / "data/pretrained/release", "--outcomes", log, cwd=tmp_path
    ) as server:
        with PresageClient(server.target) as client:
            assert client.report(rows).accepted == 2
            assert client.report(rows).duplicates == 2
        done = ingested(to, log)  # the server still runs

    assert (done.outcomes, done.quarantined) == (2, {})
    assert set(table(to, "outcomes")["idempotency_key"]) == {"a", "b"}
    assert table(to, "colocations")["slowdown"].max() == 2.0


def test_the_command_reads_a_folder_of_logs_and_prints_a_summary(tmp_path, to, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "params.yaml").write_text(
        "outcomes: {half_life_days: 30, most_weight: 4, newest_runs: 3}\n"
    )
    log_of(tmp_path / "logs/a.db", [outcome("a"), outcome("b", compute_utilization=0.0)])
    log_of(tmp_path / "logs/b.db", [outcome("a")])

    def call(*more):
        result = CliRunner().invoke(app, ["ingest", "logs", "--to", str(to), *more])
        assert result.exit_code == 0, result.output
        return result.output

    for part in ("3 outcomes", "steps on an idle device", "duplicates", "quarantine.jsonl"):
        assert part in call()
    said = json.loads(call("--json"))
    assert (said["outcomes"], said["duplicates"]) == (3, 1)
    assert said["rows"]["executions"] == 1


@pytest.mark.parametrize(
    "change", [{"half_life_days": 0}, {"most_weight": float("nan")}, {"newest_runs": 0}]
)
def test_the_error_names_an_invalid_weight(tmp_path, change):
    path = tmp_path / "params.yaml"
    path.write_text(yaml.safe_dump({"outcomes": GIVEN | change}))

    with pytest.raises(ConfigError, match=rf"outcomes: {next(iter(change))}=.*must be"):
        read_params("outcomes", Recency, path=path)


def test_withdrawn_outcomes_are_quarantined_until_the_withdrawal_is_removed(tmp_path, to):
    logs = [
        log_of(tmp_path / "a.db", [outcome("a"), outcome("b", "gpt", age_days=2)], by="node-1"),
        log_of(tmp_path / "b.db", [outcome("c", "vgg"), outcome("d", "gnn")], by="node-2"),
    ]

    def used(*withdrawals):
        ingested(to, *logs, withdrawals=withdrawals)
        return set(table(to, "outcomes")["idempotency_key"])

    assert used() == {"a", "b", "c", "d"}
    whole = bytes_of(to)
    assert used(Withdrawal(reported_by="node-2")) == {"a", "b"}
    assert [(q["idempotency_key"], q["rule"], q["reason"]) for q in quarantined(to)] == [
        (key, "withdrawn", "by outcomes.withdrawn[0] of params.yaml") for key in "cd"
    ]
    assert used(Withdrawal(reported_by="node-1", until=NOON_S - DAY_S)) == {"a", "c", "d"}
    assert used(Withdrawal(since=datetime.fromtimestamp(NOON_S, UTC))) == {"b"}
    assert used(Withdrawal(log=str(logs[0])), Withdrawal(release_id="other")) == {"c", "d"}
    assert used(Withdrawal(machine="sheet ")) == set()
    assert used() == {"a", "b", "c", "d"}
    assert bytes_of(to) == whole


def test_the_command_withdraws_outcomes_of_a_reporter(tmp_path, to):
    log_of(tmp_path / "a.db", [outcome("a")], by="node-1")
    log_of(tmp_path / "b.db", [outcome("b", "vgg"), outcome("c", "gnn")], by="node-2")

    done = CliRunner().invoke(app, ["withdraw", str(tmp_path), "--reported-by", "node-2", "--json"])

    assert json.loads(done.stdout) == {"withdrawn": 2}
    ingested(to, tmp_path / "a.db", tmp_path / "b.db")
    assert set(table(to, "outcomes")["idempotency_key"]) == {"a"}
    assert [(q["idempotency_key"], q["reason"]) for q in quarantined(to)] == [
        (key, "by `presage outcomes withdraw`") for key in "bc"
    ]


def test_withdrawing_needs_a_selection(tmp_path):
    result = CliRunner().invoke(app, ["withdraw", str(tmp_path)])
    assert "give --key or --reported-by" in str(result.exception)


@pytest.mark.parametrize(
    ("listed", "words"),
    [
        ("[{}]", r"withdrawn\[0\]: no condition is given"),
        ("{reported_by: a}", "is not a list"),
        ("[a]", "is not a mapping"),
        ("[{by: a}]", r"withdrawn\[0\].by is not a setting"),
        ("[{reported_by: 7}]", "is not text; put it in quotes"),
        ("[{since: 2026-11-02, until: 2026-11-01T00:00:00Z}]", "is not before until"),
        ("[{since: monday}]", "is not a number"),
    ],
)
def test_the_error_names_an_invalid_withdrawal(tmp_path, monkeypatch, listed, words):
    monkeypatch.chdir(tmp_path)
    Path("params.yaml").write_text(f"outcomes: {{newest_runs: 3, withdrawn: {listed}}}")
    with pytest.raises(ConfigError, match=words):
        read_withdrawals()


def test_without_a_log_the_tables_are_empty(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "params.yaml").write_text(
        "outcomes: {half_life_days: 30, most_weight: 4, newest_runs: 3}\n"
    )
    result = CliRunner().invoke(app, ["ingest", "--json"])

    assert result.exit_code == 0, result.output
    assert json.loads(result.output)["rows"] == dict.fromkeys(TABLES, 0)
    assert sorted(bytes_of(tmp_path / "data/outcomes/tables")) == sorted(
        ["quarantine.jsonl", *(f"{name}.parquet" for name in TABLES)]
    )
