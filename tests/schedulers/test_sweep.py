"""Sweeps: all combinations, on processes and on Ray, and on from where one was stopped."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from importlib.util import find_spec

import pyarrow.parquet as pq
import pytest

from presage.features.errors import ConfigError
from presage.scenario import Scenario
from presage.schedulers.confidence import mean_and_margin
from presage.sweep import compared, digest_of, read_sweep, run_sweep

TRACE = "job_id,submit,gpus,duration\n" + "".join(
    f"{i},{i % 7},{1 + i % 2},{10 + i % 5}\n" for i in range(40)
)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "trace.csv").write_text(TRACE)
    (tmp_path / "cluster.yaml").write_text("nodes: [{name: n0, devices: 2, kind: v100}]\n")
    (tmp_path / "sweep.yaml").write_text(
        "trace: trace.csv\ncluster: cluster.yaml\npolicy: [fifo, sjf]\nload: [1, 2]\n"
        "faults: '0.001,0.0001'\nseed: [0, 1, 2]\n"
    )
    return tmp_path


def swept(folder, **options):
    counted = []
    scenarios = read_sweep(folder / "sweep.yaml")
    outcomes = run_sweep(
        scenarios, folder / "out",
        **{"workers": 2, "ray": None, "progress": lambda: counted.append(1)} | options,
    )  # fmt: skip
    assert len(counted) == len(scenarios) == len(outcomes)
    return scenarios, outcomes


def test_every_combination_is_simulated_once_and_told_in_order(folder):
    scenarios, outcomes = swept(folder)

    told = [
        (o["scenario"]["policy"], o["scenario"]["load"], o["scenario"]["seed"]) for o in outcomes
    ]
    assert told == [(one.policy, one.load, one.seed) for one in scenarios]
    assert told[:4] == [("fifo", 1, 0), ("fifo", 1, 1), ("fifo", 1, 2), ("fifo", 2, 0)]
    assert {o["metrics"]["jobs"] for o in outcomes} == {40}
    rows = compared(outcomes)
    assert [(row["policy"], row["load"]) for row in rows] == [
        ("fifo", "1.0"), ("fifo", "2.0"), ("sjf", "1.0"), ("sjf", "2.0")
    ]  # fmt: skip
    assert "±" in rows[0]["JCT h"]  # faults are drawn anew for every seed


def test_what_is_there_is_not_made_again_unless_it_is_of_other_files(folder):
    _, first = swept(folder)
    made = {path: path.stat().st_mtime_ns for path in (folder / "out").iterdir()}
    next(iter(made)).unlink()

    _, again = swept(folder)
    assert again == first
    kept = {path: path.stat().st_mtime_ns for path in (folder / "out").iterdir()}
    assert sum(made[path] == kept[path] for path in made) == len(made) - 1

    before = digest_of(read_sweep(folder / "sweep.yaml")[0])
    (folder / "trace.csv").write_text(TRACE + "40,0,1,5\n")
    assert digest_of(read_sweep(folder / "sweep.yaml")[0]) != before


def test_a_sweep_that_was_killed_goes_on(folder):
    command = [
        sys.executable, "-m", "presage", "simulate", "--sweep", str(folder / "sweep.yaml"),
        "--output", str(folder / "out"), "--workers", "1", "--json",
    ]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as process:
        while not list((folder / "out").glob("[!.]*.json")):
            assert process.poll() is None
        process.send_signal(signal.SIGKILL)
    done = {path: path.read_bytes() for path in (folder / "out").glob("[!.]*.json")}
    assert done

    again = subprocess.run(command, capture_output=True, text=True, check=True)
    outcomes = json.loads(again.stdout)["outcomes"]
    assert len(outcomes) == 12
    assert all(path.read_bytes() == content for path, content in done.items())
    table = pq.read_table(folder / "out" / "outcomes.parquet").to_pylist()
    assert [row["average_jct_s"] for row in table] == [
        one["metrics"]["average_jct_s"] for one in outcomes
    ]


@pytest.mark.skipif(
    find_spec("ray") is None, reason="Ray is not installed: pip install presage[ray]"
)
def test_a_sweep_on_ray_tells_the_same(folder):
    script = (
        "import ray, json, sys; from pathlib import Path; from presage.sweep import *\n"
        "ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)\n"
        "found = run_sweep(read_sweep(Path(sys.argv[1])), Path(sys.argv[2]), workers=1, ray='auto',"
        " progress=lambda: None)\n"
        "print(json.dumps(found))\n"
    )
    told = subprocess.run(
        [sys.executable, "-c", script, str(folder / "sweep.yaml"), str(folder / "on-ray")],
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    assert json.loads(told.stdout.splitlines()[-1]) == swept(folder)[1]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("policy: fifo\ncluster: c\n", "no trace; name a file"),
        ("trace: t\ncluster: c\npolcy: fifo\n", "polcy is not known; nearest is 'policy'"),
        (
            "trace: t\ncluster: c\npolicy: [fifo, sfj]\n",
            "policy sfj is not known; nearest is 'sjf'",
        ),
        ("trace: t\ncluster: c\nload: fast\n", "load='fast' is no number"),
        ("trace: t\ncluster: c\nload: -1\n", r"load=-1\.0, must be a finite number > 0"),
        ("trace: t\ncluster: c\nforecast: table\n", "forecast 'table' needs a table"),
        ("- fifo\n", "is no mapping; write `trace:`"),
        ("trace: [\n", "is no YAML"),
    ],
)
def test_a_wrong_sweep_is_named(tmp_path, text, said):
    path = tmp_path / "sweep.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=said):
        read_sweep(path)


def test_a_scenario_that_cannot_be_simulated_is_named(folder):
    scenario = Scenario(folder / "trace.csv", folder / "cluster.yaml", forecast="no such release")
    with pytest.raises(
        ConfigError, match=r"trace.csv under fifo: forecast 'no such release' is not"
    ):
        run_sweep([scenario], folder / "out", workers=1, ray=None, progress=lambda: None)


def test_margins_are_students():
    assert mean_and_margin([1.0, 2.0, 3.0])[0] == 2.0
    assert mean_and_margin([1.0, 2.0, 3.0])[1] == pytest.approx(4.303 / 3**0.5)
    assert mean_and_margin([5.0]) == (5.0, float("inf"))
    assert mean_and_margin([0.0, 1.0] * 50)[1] == pytest.approx(1.96 * 0.5025 / 10, rel=1e-3)
