"""``presage trace`` as a person and a program meet it."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from presage.cli.app import app
from presage.errors import ConfigError, PresageError
from presage.schedulers.traces.formats import read_trace

PHILLY = (
    "timestamp,duration,num_gpus,gpu_time,cluster\n"
    "2017-10-09 07:00:00,60,1,60,red\n2017-10-09 08:00:00,7200,4,28800,blue\n"
    "2017-10-09 09:00:00,60,1,60,red\n2017-10-12 10:00:00,600,2,1200,red\n"
    "2017-10-12 10:00:00,600,0,0,red\n"
)


@pytest.fixture
def trace(tmp_path, monkeypatch):
    """Run it where philly.csv is."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    (tmp_path / "philly.csv").write_text(PHILLY)

    def invoke(*words):
        result = CliRunner().invoke(app, ["trace", *words])
        if isinstance(result.exception, PresageError):
            raise result.exception
        assert result.exit_code == 0, result.output
        return result.stdout

    return invoke


def test_json_output_is_only_json(trace):
    result = json.loads(trace("show", "philly.csv", "--json"))

    assert result["jobs"] == 4
    assert result["span_s"] == 75 * 3600.0
    assert result["devices_busy"] == pytest.approx((60 + 28800 + 60 + 1200) / (75 * 3600))
    assert result["gangs"] == {"1": 2, "2": 1, "4": 1}
    assert result["users"] == {"red": 3, "blue": 1}
    assert result["left_out"] == {"without GPUs": 1}
    assert result["duration_s"]["p50"] == 330.0


def test_terminal_output_has_figures_with_units(trace):
    shown = trace("show", "philly.csv")
    for words in (
        "jobs          4", "3.1 d", "0.1 devices busy", "0.1 an hour, index of dispersion",
        "p50 5.5 min", "1: 2 (50.0%), 2: 1 (25.0%)", "red: 3 (75.0%), blue: 1",
        "1 rows left out: 1 without GPUs",
    ):  # fmt: skip
        assert words in shown


def test_part_of_a_trace_is_written_in_our_format(trace, tmp_path):
    result = trace(
        "convert", "philly.csv", "--output", "new/red.csv", "--user", "red", "--from-s", "3600",
        "--to-s", "999999", "--first", "1", "--load", "2",
    )  # fmt: skip

    assert result == "new/red.csv: 1 jobs\n1 rows left out: 1 without GPUs\n"
    assert (tmp_path / "new/red.csv").read_text() == (
        "job_id,submit,gpus,duration,user\n2,1800.0,1,60.0,red\n"
    )


def test_more_jobs_like_those_of_a_trace_have_the_same_bytes_each_time(trace, tmp_path):
    for name, load in (("first.csv", "1"), ("second.csv", "1"), ("dense.csv", "2")):
        words = ("--like", "philly.csv", "--jobs", "50", "--seed", "3", "--load", load)
        assert trace("generate", *words, "--output", name) == f"{name}: 50 jobs\n"

    first, dense = (read_trace(tmp_path / name) for name in ("first.csv", "dense.csv"))
    assert (tmp_path / "first.csv").read_bytes() == (tmp_path / "second.csv").read_bytes()
    assert dense.jobs[-1].submit_s == first.jobs[-1].submit_s / 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--user", "rde"), "no job of user 'rde' in the trace; did you mean 'red'"),
        (("--load", "0"), "--load 0.0: must be a finite number above 0"),
        (
            ("--load", "1e-320"),
            "load=9.99989e-321: the last job would be submitted after more than",
        ),
        (("--load", "nan"), "--load nan: must be a finite number above 0"),
        (("--from-s", "nan"), "--from-s nan: must be a number of seconds"),
        (("--to-s", "nan"), "--to-s nan: must be a number of seconds"),
        (("--from-s", "1e9"), "out.csv: no job is selected"),
    ],
)
def test_an_invalid_part_is_rejected(trace, tmp_path, words, message):
    with pytest.raises(ConfigError, match=message):
        trace("convert", "philly.csv", "--output", "out.csv", *words)
    assert not (tmp_path / "out.csv").exists()


def test_output_files_are_not_gzipped(trace):
    with pytest.raises(ConfigError, match=r"--output out.csv.gz: the file is plain CSV"):
        trace("convert", "philly.csv", "--output", "out.csv.gz")


@pytest.mark.parametrize(
    ("jobs", "message"),
    [
        (
            "999999999999",
            "999,999,999,999 jobs; at most 10,000,000 can be generated",
        ),
        ("10000000", "10,000,000 jobs at the rate of the trace take more than 1e.12 s"),
    ],
)
def test_too_many_jobs_are_rejected(trace, tmp_path, jobs, message):
    (tmp_path / "rare.csv").write_text("job_id,submit,gpus,duration\na,0,1,9\nb,1e6,1,9\n")
    with pytest.raises(ConfigError, match=message):
        trace("generate", "--like", "rare.csv", "--jobs", jobs, "--output", "out.csv")


def test_output_must_be_a_file(trace):
    for words in (("convert", "philly.csv"), ("generate", "--like", "philly.csv", "--jobs", "9")):
        with pytest.raises(ConfigError, match=r"--output \.: is a folder; name a file in it"):
            trace(*words, "--output", ".")


def test_a_log_of_a_simulation_is_a_trace_again(trace, tmp_path):
    (tmp_path / "cluster.yaml").write_text("nodes: [{name: n0, devices: 4, kind: v100}]")
    words = ["simulate", "--trace", "philly.csv", "--cluster", "cluster.yaml", "--policy", "fifo"]
    result = CliRunner().invoke(app, [*words, "--log", "."])
    assert result.exit_code == 0
    assert result.stdout.endswith("1 rows left out: 1 without GPUs\n")
    trace("convert", "fifo.jsonl", "--output", "again.csv")

    was, again = read_trace(tmp_path / "philly.csv"), read_trace(tmp_path / "again.csv")
    assert (again.jobs, again.duration_s) == (was.jobs, was.duration_s)
