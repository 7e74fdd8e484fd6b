"""Sweeps: all combinations, on processes and on Ray, and on from where one was stopped."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from presage.errors import ConfigError
from presage.schedulers.simulator.results.confidence import mean_with_margin
from presage.schedulers.simulator.sweep import (
    comparison_rows,
    compute_digest,
    read_sweep,
    run_sweep,
)
from presage.serving.client.client import PresageClient
from presage.system.processes.worker_processes import done_by_workers
from tests.serving.conftest import make_release
from tests.serving.support.processes import serving
from tests.support.ray_driver import run_ray_driver
from tests.support.waiting import wait_until

TRACE = "job_id,submit,gpus,duration\n" + "".join(
    f"{i},{i % 7},{1 + i % 2},{10 + i % 5}\n" for i in range(40)
)


IN_PROC = pytest.mark.skipif(
    not Path("/proc/self/task").exists(), reason="processes are looked up in /proc"
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


def test_every_combination_is_simulated_once_and_reported_in_order(folder):
    scenarios, outcomes = swept(folder)

    result = [
        (o["scenario"]["policy"], o["scenario"]["load"], o["scenario"]["seed"]) for o in outcomes
    ]
    assert result == [(one.policy, one.load, one.seed) for one in scenarios]
    assert result[:4] == [("fifo", 1, 0), ("fifo", 1, 1), ("fifo", 1, 2), ("fifo", 2, 0)]
    assert {o["metrics"]["jobs"] for o in outcomes} == {40}
    rows = comparison_rows(outcomes)
    assert [(row["policy"], row["load"]) for row in rows] == [
        ("fifo", "1.0"), ("fifo", "2.0"), ("sjf", "1.0"), ("sjf", "2.0")
    ]  # fmt: skip
    assert "±" in rows[0]["JCT h"]  # faults are drawn for every seed
    assert {row["finished"] for row in rows} == {"40"}


def test_unfinished_jobs_are_shown_with_the_means_of_finished_ones(folder):
    (folder / "trace.csv").write_text(TRACE + "large,0,9,1\n")
    (folder / "faults.csv").write_text("at_s,node,event\n30,n0,fail\n")
    (folder / "sweep.yaml").write_text(
        "trace: trace.csv\ncluster: cluster.yaml\npolicy: [fifo, sjf]\nseed: [0, 1]\n"
        "faults: ['', faults.csv]\n"
    )
    rows = comparison_rows(swept(folder)[1])

    assert [(row["policy"], row["finished"]) for row in rows[::2]] == [
        ("fifo", "40.00 of 41"), ("sjf", "40.00 of 41")
    ]  # fmt: skip
    for row in rows[1::2]:
        assert 0 < float(row["finished"].removesuffix(" of 41")) < 10


def test_existing_outcomes_are_not_recomputed_unless_files_changed(folder):
    _, first = swept(folder)
    made = {path: path.stat().st_mtime_ns for path in (folder / "out").iterdir()}
    next(iter(made)).unlink()

    _, again = swept(folder)
    assert again == first
    kept = {path: path.stat().st_mtime_ns for path in (folder / "out").iterdir()}
    assert sum(made[path] == kept[path] for path in made) == len(made) - 1

    before = compute_digest(read_sweep(folder / "sweep.yaml")[0])
    (folder / "trace.csv").write_text(TRACE + "40,0,1,5\n")
    assert compute_digest(read_sweep(folder / "sweep.yaml")[0]) != before


def test_a_killed_sweep_resumes(folder):
    command = [
        sys.executable, "-m", "presage", "sweep", str(folder / "sweep.yaml"),
        "--out", str(folder / "out"), "--workers", "1", "--json",
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
def test_a_sweep_on_ray_has_the_same_results(folder):
    script = (
        "import ray, json, sys; from pathlib import Path\n"
        "from presage.schedulers.simulator.sweep import *\n"
        "ray.init(address='local', num_cpus=2, include_dashboard=False, log_to_driver=False)\n"
        "found = run_sweep(read_sweep(Path(sys.argv[1])), Path(sys.argv[2]), workers=1, ray='auto',"
        " progress=lambda: None)\n"
        "print(json.dumps(found))\n"
    )
    result = run_ray_driver("-c", script, folder / "sweep.yaml", folder / "on-ray", timeout_s=300)
    assert json.loads(result.stdout.splitlines()[-1]) == swept(folder)[1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("policy: fifo\ncluster: c\n", "key 'trace' is missing; name a file"),
        ("trace: t\ncluster: c\npolcy: fifo\n", "polcy is not known; did you mean 'policy'"),
        (
            "trace: t\ncluster: c\npolicy: [fifo, sfj]\n",
            "policy sfj is not known; did you mean 'sjf'",
        ),
        ("trace: t\ncluster: c\nload: fast\n", "load='fast' is not a number"),
        ("trace: t\ncluster: c\nload: -1\n", r"load=-1\.0, must be a finite number > 0"),
        ("trace: t\ncluster: c\npredictor: table\n", "predictor 'table' needs tables"),
        *(
            (f"trace: t\ncluster: c\n{line}\n", message)
            for line, message in (
                ("policy: 3", "policy=3 is not text"),
                ("policy: []", "policy is an empty list"),
                ("trace: 3", "trace=3 is not the path of a file"),
                ('trace: "a\\0b"', "is not the path of a file"),
                ("predictor: null", "predictor=None is not text"),
                ("faults: 3", "faults=3 is not text"),
                ("seed: foo", "seed='foo' is not an integer"),
                ("seed: 1.5", r"seed=1\.5 is not an integer"),
                ("seed: true", "seed=True is not an integer"),
                ("seed: [0, [1]]", r"seed=\[1\] is not an integer"),
                ("seed: -1", "seed=-1, must be an integer >= 0"),
                (f"seed: {2**63}", "of at most 63 bits"),
                ("risk: .nan", "risk=nan, must be above 0 and at most"),
                ("risk: 7", r"risk=7\.0, must be above 0 and at most 0\.5"),
                ("load: 1e3", "load='1e3' is not a number .to YAML"),
                (f"load: {10**400}", "int too large"),
                ("noise: 11", "noise=11.0, must be within 0 and 10"),
                ("bias: 1.0e+7", "bias=10000000.0, must be above 0 and at most 1,000,000"),
                ("keep_going: 'no'", "keep_going='no' is not true or false"),
                ("draw_models: 'false'", "draw_models='false' is not true or false"),
                ("draw_models: true", "draw_models needs measured tables"),
                ("from_day: [0, 3]", "from_day needs a fault file; name one as `faults`"),
                ("faults: '30,1'\nfrom_day: 3", "from_day needs a fault file"),
                ("from_day: -1", "from_day=-1.0, must be a finite number >= 0"),
                ("checkpoint_interval_s: 0", "checkpoint_interval_s=0.0, must be a number > 0"),
                ("checkpoint_cost_s: -1", "checkpoint_cost_s=-1.0, must be a finite"),
                ("restart_s: .nan", "restart_s=nan, must be a finite"),
            )
        ),
        ("- fifo\n", "is not a mapping; write `trace:`"),
        ("trace: [\n", "is not YAML"),
    ],
)
def test_an_invalid_sweep_is_named(tmp_path, text, message):
    path = tmp_path / "sweep.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message) as error:
        read_sweep(path)
    assert "\n" not in str(error.value)


def test_equal_scenarios_are_one(tmp_path):
    path = tmp_path / "sweep.yaml"
    path.write_text("trace: t\ncluster: c\nseed: [0, 1, 0]\nload: [1, 1.0]\nmeasured: null\n")
    assert [(one.seed, one.load, one.measured) for one in read_sweep(path)] == [
        (0, 1.0, None), (1, 1.0, None)
    ]  # fmt: skip


def test_a_failing_scenario_is_named_and_the_others_are_simulated(folder):
    (folder / "sweep.yaml").write_text(
        "trace: trace.csv\ncluster: cluster.yaml\npolicy: [fifo, sjf]\n"
        "predictor: [none, oracel, '127.0.0.1:1', 'there:99999']\n"
    )
    result = simulate(folder)
    assert result.returncode == 1
    assert len(json.loads(result.stdout)["outcomes"]) == 2 == len(done_in(folder))
    assert pq.read_table(folder / "out" / "outcomes.parquet").num_rows == 2
    lines = result.stderr.splitlines()
    assert len(lines) == 7
    assert lines[0].startswith("policy=fifo predictor=oracel: predictor 'oracel' is unknown; did ")
    assert lines[1].startswith("policy=fifo predictor=127.0.0.1:1: ")
    assert "there:99999': port 99999 is out of range" in lines[2]
    assert lines[-1] == "error: 6 of 8 simulations failed; see the lines above"


@pytest.fixture
def slow(folder):
    """Return one quick scenario and two that take minutes, in this order."""
    (folder / "slow.csv").write_text(
        "job_id,submit,gpus,duration\n" + "".join(f"{i},0,1,9000000\n" for i in range(50))
    )
    (folder / "sweep.yaml").write_text(
        "trace: [trace.csv, slow.csv]\ncluster: cluster.yaml\nfaults: '0.02,0.01'\nseed: [1, 2]\n"
        "checkpoint_interval_s: 60\n"
    )
    return folder


@IN_PROC
def test_ctrl_c_ends_workers_at_once_and_keeps_what_was_done(slow):
    with subprocess.Popen(command(slow), stderr=subprocess.PIPE, start_new_session=True) as process:
        wait_until(lambda: len(done_in(slow)) == 2)
        working = workers_of(process.pid)
        assert working
        began_s = time.monotonic()
        os.killpg(process.pid, signal.SIGINT)
        message = process.communicate(timeout=60)[1].decode()
    assert time.monotonic() - began_s < 10
    assert process.returncode == 130
    assert message == "interrupted; files are complete\n"
    assert len(done_in(slow)) == 2
    assert not any(Path(f"/proc/{worker}").exists() for worker in working)


@IN_PROC
def test_a_killed_worker_is_named_and_the_others_continue(slow):
    with subprocess.Popen(command(slow), stderr=subprocess.PIPE, text=True) as process:
        wait_until(lambda: len(done_in(slow)) == 2)
        for _ in range(2):  # each at one of the slow ones
            killed = wait_until(lambda: workers_of(process.pid))[0]
            os.kill(killed, signal.SIGKILL)
            wait_until(lambda: killed not in workers_of(process.pid))  # noqa: B023
        lines = process.communicate(timeout=60)[1].splitlines()
    assert process.returncode == 1
    assert len(lines) == 3
    for line, seed in zip(lines, (1, 2), strict=False):
        assert line.startswith(f"trace=slow.csv seed={seed}: its process was killed by SIGKILL")
    assert len(done_in(slow)) == 2


def test_the_scenario_of_a_dead_process_is_named_and_another_process_continues(capfd):
    result = dict(done_by_workers(int, ["1", "x", "3", "y", "5"], 2))
    assert [result[i] for i in (0, 2, 4)] == [1, 3, 5]
    assert all("its process ended with status 1" in str(result[i]) for i in (1, 3))
    assert "invalid literal for int() with base 10: 'x'" in capfd.readouterr().err
    assert not list(done_by_workers(int, [], 2))


def workers_of(pid):
    """Return the simulating child processes, without multiprocessing's tracker."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(c) for c in children if b"spawn_main" in Path(f"/proc/{c}/cmdline").read_bytes()]


def command(folder):
    return [
        sys.executable, "-m", "presage", "sweep", str(folder / "sweep.yaml"),
        "--out", str(folder / "out"), "--workers", "1", "--json",
    ]  # fmt: skip


def simulate(folder):
    return subprocess.run(command(folder), capture_output=True, text=True, check=False)


def done_in(folder):
    return list((folder / "out").glob("[!.]*.json"))


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b'{"metrics": {}}', b"\xff"])
def test_a_corrupt_outcome_is_recomputed(folder, content):
    (folder / "sweep.yaml").write_text("trace: trace.csv\ncluster: cluster.yaml\n")
    _, first = swept(folder)
    (path,) = done_in(folder)
    path.write_bytes(content)
    assert swept(folder)[1] == first
    assert json.loads(path.read_bytes()) == first[0]


def test_an_outcome_depends_on_the_served_release(folder):
    release = make_release(folder / "release")
    with serving("--release", release.folder) as server:
        scenario = replace(read_sweep(folder / "sweep.yaml")[0], predictor=server.target)
        before = compute_digest(scenario)
        other = make_release(folder / "other", data_digest="1" * 16)
        assert other.release_id != release.release_id
        shutil.copytree(other.folder, folder / "release", dirs_exist_ok=True)
        with PresageClient(server.target) as client:
            client.reload()
        run_sweep([], folder / "out", workers=1, ray=None, progress=lambda: None)  # asks again
        assert compute_digest(scenario) != before


def test_an_outcome_depends_on_the_listings_of_its_cluster(folder):
    scenario = read_sweep(folder / "sweep.yaml")[0]
    digests = set()
    for link in ("NV1", "PHB"):
        rows = f"\tGPU0\tGPU1\nGPU0\tX\t{link}\nGPU1\t{link}\tX\n"
        (folder / "topo.txt").write_text(rows)
        (folder / "cluster.yaml").write_text(
            "nodes: [{name: n0, devices: 2, kind: v100, within: topo.txt}]\n"
        )
        digests.add(compute_digest(scenario))
    assert len(digests) == 2


def test_margins_follow_students_t_distribution():
    assert mean_with_margin([1.0, 2.0, 3.0])[0] == 2.0
    assert mean_with_margin([1.0, 2.0, 3.0])[1] == pytest.approx(4.303 / 3**0.5)
    assert mean_with_margin([5.0]) == (5.0, float("inf"))
    assert mean_with_margin([0.0, 1.0] * 50)[1] == pytest.approx(1.96 * 0.5025 / 10, rel=1e-3)
