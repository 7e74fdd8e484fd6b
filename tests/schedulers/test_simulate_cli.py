"""``presage simulate`` as a person and a program meet it."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from presage.cli import app
from presage.features.errors import ConfigError, PresageError
from presage.schedulers.policies import POLICIES


@pytest.fixture
def simulate(tmp_path, monkeypatch):
    """Run it on three jobs and two devices."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    (tmp_path / "trace.csv").write_text(
        "job_id,submit,gpus,duration,model\na,0,2,100,\nb,1,2,50,\nc,2,1,10,\nlarge,3,9,1,\n"
    )
    (tmp_path / "cluster.yaml").write_text("nodes: [{name: n0, devices: 2, kind: v100}]")

    def invoke(*more):
        words = ["simulate", "--trace", "trace.csv", "--cluster", "cluster.yaml", *more]
        result = CliRunner().invoke(app, words)
        if isinstance(result.exception, PresageError):
            raise result.exception
        assert result.exit_code == 0, result.output
        return result.stdout

    return invoke


def test_a_program_is_given_json_and_nothing_else(simulate):
    told = json.loads(simulate("--policy", "sjf,fifo", "--json"))["policies"]

    assert list(told) == ["sjf", "fifo"]
    # Two devices; asked for are 2 until 1 s, 4 until 2, 5 until 100, 3 until 150, then 1.
    middle, last = 149 / 50 / ((2 + 245 + 75) / 149), 158 / 10 / ((245 + 75 + 10) / 158)
    assert told["fifo"]["p99_unfairness"] == pytest.approx(middle + 0.98 * (last - middle))
    assert told["fifo"] | {"p99_jct_s": 0, "p99_unfairness": 0} == {
        "jobs": 3, "failed": 0, "rejected": 1, "starved": 0,
        "average_jct_s": (100 + 149 + 158) / 3, "median_jct_s": 149.0, "p99_jct_s": 0,
        "makespan_s": 160.0, "average_queue_s": (0 + 99 + 148) / 3,
        "average_slowdown": 1.0, "p99_unfairness": 0, "unfair_share": 2 / 3,
        "device_use": (200 + 100 + 10) / 320, "preemptions": 0, "overflows": 0,
        "exceeded_share": None,
    }  # fmt: skip
    assert told["sjf"]["average_jct_s"] == (100 + 108 + 159) / 3
    assert (
        json.loads(simulate("--policy", "sjf", "--forecast", "none", "--json"))["policies"]["sjf"]
        == told["fifo"]
    )  # who knows nothing serves in order


def test_a_person_is_shown_a_table_and_what_did_not_run(simulate):
    shown = simulate()
    for words in ("policy", "fifo", "sjf", "JCT h", "fifo: 1 jobs rejected"):
        assert words in shown


def test_the_log_has_the_same_bytes_each_time(simulate, tmp_path):
    simulate("--log", "first")
    simulate("--log", "second")
    for name in ("fifo.jsonl", "sjf.jsonl"):
        first = (tmp_path / "first" / name).read_bytes()
        assert first == (tmp_path / "second" / name).read_bytes()
        entries = [json.loads(line) for line in first.splitlines()]
        assert {entry["what"] for entry in entries} == {
            "submit",
            "reject",
            "decide",
            "start",
            "finish",
        }
        submitted, rejected = [entry for entry in entries if entry["job"] == "large"]
        assert submitted["more"] == {"gpus": 9}
        assert rejected["more"] == "a gang of 9, and there are 2 devices for it"


def test_the_page_is_a_file_with_the_same_bytes_each_time(simulate, tmp_path):
    simulate("--report", "first.html")
    simulate("--report", "second.html")
    first = (tmp_path / "first.html").read_text()

    assert first == (tmp_path / "second.html").read_text()
    assert "<h1>trace on cluster</h1>" in first


def test_tables_have_a_row_a_policy_and_job_and_a_row_an_interval(simulate, tmp_path):
    simulate("--policy", "fifo,sjf", "--parquet", "tables")
    jobs = pq.read_table(tmp_path / "tables" / "jobs.parquet")
    intervals = pq.read_table(tmp_path / "tables" / "intervals.parquet")
    fifo = jobs.slice(0, 4).to_pylist()

    assert jobs["policy"].to_pylist() == ["fifo"] * 4 + ["sjf"] * 4
    assert fifo[1] == {
        "policy": "fifo", "job_id": "b", "model": "", "gpus": 2, "user": "", "submit_s": 1.0,
        "first_start_s": 100.0, "end_s": 150.0, "phase": "finished", "jct_s": 149.0,
        "waited_s": 99.0, "starts": 1, "overflows": 0, "attained_device_s": 100.0,
    }  # fmt: skip
    assert (fifo[3]["phase"], fifo[3]["first_start_s"], fifo[3]["jct_s"]) == (
        "rejected",
        None,
        None,
    )
    assert intervals.slice(2, 2).to_pylist() == [
        {"policy": "fifo", "job_id": "b", "device": f"n0/{i}", "start_s": 100.0, "end_s": 150.0,
         "compute_milli": 1000, "paused": False, "ended_by": "finish"}
        for i in range(2)
    ]  # fmt: skip
    page = (Path(__file__).parents[2] / "docs" / "simulating.md").read_text()
    for table in (jobs, intervals):
        assert all(f"`{column}`" in page for column in table.column_names)


def test_help_names_every_policy():
    shown = CliRunner().invoke(app, ["simulate", "--help"]).stdout
    for name in POLICIES:
        assert name in shown


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--policy", "fifo,sfj"), "--policy 'sfj' is not known; nearest is 'sjf'"),
        (("--policy", ","), "--policy '' is not known; known are fifo, backfill, sjf"),
        (("--log", "trace.csv"), "--log trace.csv: File exists; name a folder"),
        (("--parquet", "trace.csv"), "--parquet trace.csv: File exists; name a folder"),
        (("--report", "absent/out.html"), "--report absent/out.html: there is no folder absent"),
        (("--report", "."), "--report .: that is a folder; name a file in it"),
        (("--forecast", "oracel"), "--forecast 'oracel' is not known; nearest is 'oracle'"),
    ],
)
def test_a_name_that_nobody_knows_is_refused(simulate, more, words):
    with pytest.raises(ConfigError, match=words):
        simulate(*more)
