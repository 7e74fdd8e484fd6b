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

    def run_with(*statuses, worker="import time; time.sleep(60)"):
        left = list(statuses)
        said: list[str] = []

        def start_leader(folder, _state):
            (folder.path / "leader.log").touch()
            code = f"import time; time.sleep(0.3); raise SystemExit({left.pop(0)})"
            return subprocess.Popen([sys.executable, "-c", code])

        monkeypatch.setattr(local_job, "start_leader", start_leader)
        command = [sys.executable, "-c", worker]
        job = local_job.LocalJob(tmp_path, "job", JobConfig(1), command, said.append)
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
