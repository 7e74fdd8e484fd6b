"""``presage elastic``: a job of processes on this machine, resized by a command."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from presage.__main__ import main
from presage.errors import ElasticError
from presage.training.job_folder import JobFolder
from presage.training.local_job import request
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]
JOB = [sys.executable, str(ROOT / "examples" / "elastic_job.py"), "--epochs", "500"]


def presage(*words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "presage", "elastic", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def wait_for(state: Path, is_reached) -> None:
    folder = JobFolder(state, "spirals")
    wait_until(lambda: is_reached(request(folder, {"op": "status"})), 120, retried=ElasticError)


def test_a_job_is_started_resized_and_shown_by_commands(tmp_path):
    command = [
        sys.executable, "-m", "presage", "elastic", "run", "--state", str(tmp_path), "--workers",
        "1", "--max", "2", "spirals", *JOB, "--step-s", "0.01",
    ]  # fmt: skip
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            wait_for(tmp_path, lambda row: row["progress"]["step"] > 0)
            resized = presage("resize", "spirals", 2, "--state", tmp_path)
            assert resized.stdout == "job 'spirals' changes to 2 workers\n"
            wait_for(tmp_path, lambda row: row["size"] == 2)
            row = json.loads(presage("status", "spirals", "--state", tmp_path, "--json").stdout)
            assert [one["state"] for one in row["workers"]] == ["member", "member"]
            os.kill(JobFolder(tmp_path, "spirals").leader().pid, signal.SIGKILL)
            wait_for(tmp_path, lambda row: [w["phase"] for w in row["workers"]] == ["running"] * 2)
            too_many = presage("resize", "spirals", 3, "--state", tmp_path)
            assert too_many.returncode == 1
            assert "3 workers is outside the job's bounds, 1 to 2" in too_many.stderr
            again = presage("run", "--state", tmp_path, "spirals", "true")
            assert "job 'spirals' runs already" in again.stderr
            shown = presage("status", "spirals", "--state", tmp_path).stdout
            assert shown.startswith("job 'spirals' is running, generation 2: 2 of 2 workers, step")
        finally:
            process.terminate()
        assert process.stderr is not None
        said = process.stderr.read()
    assert "generation 2: 1 -> 2 workers at step" in said
    assert "the leader was killed; starting it again" in said


def test_a_job_that_is_terminated_saves_and_continues_when_it_is_started_again(tmp_path):
    command = [
        sys.executable, "-m", "presage", "elastic", "run", "--state", str(tmp_path), "--workers",
        "1", "spirals", *JOB[:2], "--epochs", "3",
    ]  # fmt: skip
    environment = os.environ | {"PRESAGE_CHECKPOINT": str(tmp_path)}
    with subprocess.Popen(
        [*command, "--step-s", "0.5"], stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            wait_for(tmp_path, lambda row: row["progress"]["step"] > 0)
        finally:
            process.terminate()
        assert process.stderr is not None
        said = process.stderr.read()
    found = re.search(r"job suspended at step (\d+); start it again to continue from its", said)
    assert found, said
    assert (tmp_path / "elastic.ckpt").exists()

    again = subprocess.run(
        [*command, "--step-s", "0"], capture_output=True, text=True, env=environment, check=False
    )
    assert again.returncode == 0, again.stderr
    assert f"generation 1: 1 workers at step {found[1]} " in again.stderr
    assert "job done at step 48" in again.stderr


def test_the_exit_status_of_a_suspended_job_is_75(tmp_path):
    code = "import os, signal, time; from presage.training import elastic; import torch; "
    code += "m = torch.nn.Linear(1, 1); o = torch.optim.SGD(m.parameters(), lr=0.1); "
    code += "r = elastic.begin(m, o, samples=4, batch=2)\n"
    code += "for s in r.steps(9):\n m(torch.ones(1, 1)).sum().backward()\n"
    code += " os.kill(os.getpid(), signal.SIGUSR1); time.sleep(0.5); r.apply()"
    done = presage("run", "--state", tmp_path, "x", sys.executable, "-c", code)

    assert done.returncode == 75, done.stderr
    assert "job suspended at step 1; nothing is saved (no checkpoint is" in done.stderr


def test_the_exit_status_is_0_for_a_finished_job_and_1_if_its_workers_fail(tmp_path):
    done = presage("run", "--state", tmp_path, "spirals", *JOB[:2], "--epochs", 1, "--step-s", 0)
    assert done.returncode == 0, done.stderr
    assert "job done at step 16" in done.stderr

    failed = presage("run", "--state", tmp_path, "spirals", sys.executable, "-c", "exit(3)")
    assert failed.returncode == 1
    assert "worker w1 ended with status 3" in failed.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["status", "x"], "no leader of job 'x' in"),
        (["resize", "x", "2"], "no leader of job 'x' in"),
        (["run", "--min", "3", "--max", "2", "x", "a"], "min_workers=3 is more than max_workers=2"),
        (["run", "../x", "true"], "job name '../x': use at most 63 letters"),
        (["run", "x"], "no command for job 'x'"),
    ],
)
def test_invalid_usage_is_reported_in_one_line(tmp_path, words, message, monkeypatch, capsys):
    command = ["presage", "elastic", words[0], "--state", str(tmp_path), *words[1:]]
    monkeypatch.setattr("sys.argv", command)

    with pytest.raises(SystemExit) as end:
        main()

    assert end.value.code == 1
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
