"""A local job restarts a leader that was killed or crashed, and reports how its job ended."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from presage.training import local_job
from presage.training.job_folder import FAILED, LEFT, SUSPENDED, UNFINISHED
from presage.training.leader.job_config import JobConfig
from presage.training.leader_restarts import MAX_CRASHES, STABLE_S, LeaderRestarts
from presage.training.local_gpus import LocalGpus, visible_gpus


def test_a_leader_that_crashes_is_started_again_three_times_in_a_row():
    restarts = LeaderRestarts()

    assert [restarts.reason(1, 0.0) for _ in range(4)] == [*["crashed"] * 3, ""]
    assert restarts.reason(1, STABLE_S) == "crashed"  # a new row
    assert restarts.reason(-signal.SIGKILL, 0.0) == "was killed"
    for status in (0, UNFINISHED, FAILED, SUSPENDED):
        assert restarts.reason(status, 0.0) == ""


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run a job whose leader ends at once with one of some statuses."""
    previous = signal.getsignal(signal.SIGTERM)

    def run_with(*statuses, worker="import time; time.sleep(60)", workers=1):
        left = list(statuses)
        said: list[str] = []

        def start_leader(folder, _state):
            (folder.path / "leader.log").touch()
            code = f"import time; time.sleep(0.3); raise SystemExit({left.pop(0)})"
            return subprocess.Popen([sys.executable, "-c", code])

        monkeypatch.setattr(local_job, "start_leader", start_leader)
        command = [sys.executable, "-c", worker]
        job = local_job.LocalJob(tmp_path, "job", JobConfig(workers), command, said.append)
        return job.run(), said, left

    yield run_with
    signal.signal(signal.SIGTERM, previous)


def test_a_job_ends_after_its_leader_crashed_too_often(run):
    status, said, left = run(1, 1, 1, 1, 0)

    assert (status, left) == (1, [0])
    assert said.count("the leader crashed; starting it again") == MAX_CRASHES


def test_a_failed_job_is_not_started_again_and_has_status_1(run):
    status, said, left = run(FAILED, 0)

    assert (status, left, said) == (1, [0], [])


def test_a_crashed_leader_continues_its_job(run):
    assert run(1, 0)[0] == 0


def test_a_worker_that_left_is_not_reported_and_one_that_failed_is(run):
    assert run(SUSPENDED, worker=f"raise SystemExit({LEFT})")[:2] == (SUSPENDED, [])
    assert run(0, worker="raise SystemExit(3)")[1] == ["worker w1 ended with status 3"]


def test_s3_each_worker_sees_the_gpu_that_the_fewest_workers_have():
    gpus = LocalGpus(["0", "GPU-b"])

    seen = [gpus.allocate(name) for name in ("w1", "w2", "w3")]
    assert seen == [{"CUDA_VISIBLE_DEVICES": gpu} for gpu in ("0", "GPU-b", "0")]
    gpus.release("w2")
    assert gpus.allocate("w4") == {"CUDA_VISIBLE_DEVICES": "GPU-b"}
    assert LocalGpus(["0"]).allocate("w1") == {}


@pytest.mark.parametrize(
    ("listed", "expected"),
    [(None, ["0", "1"]), ("3, GPU-b", ["3", "GPU-b"]), ("", []), ("-1", ["-1"])],
)
def test_s3_the_gpus_of_a_job_are_those_that_are_visible(tmp_path, monkeypatch, listed, expected):
    for name in ("nvidia0", "nvidia5", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if listed is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", listed)

    assert visible_gpus(tmp_path) == expected


def test_s3_workers_start_with_a_gpu_of_their_own_and_local_rank_0(run, monkeypatch, tmp_path):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    names = "'PRESAGE_ELASTIC_WORKER', 'LOCAL_RANK', 'CUDA_VISIBLE_DEVICES'"
    code = (
        f"import os, pathlib; name, rank, gpu = map(os.environ.get, ({names})); "
        f"pathlib.Path({str(tmp_path)!r}, name + '.gpu').write_text(rank + ' ' + gpu)"
    )
    assert run(0, worker=code, workers=3)[0] == 0

    seen = {path.stem: path.read_text() for path in tmp_path.glob("*.gpu")}
    assert seen == {"w1": "0 4", "w2": "0 7", "w3": "0 4"}
