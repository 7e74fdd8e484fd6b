"""Workers leave on SIGTERM and SIGUSR1; below the minimum the job is saved and waits."""

from __future__ import annotations

import signal

import pytest

from presage.training.job_folder import LEFT, SUSPENDED
from presage.training.leader.job_config import JobConfig
from presage.training.local_job import prepare, start_leader
from tests.training.support.job import running
from tests.training.support.laws import check_equals_uninterrupted, check_exactly_once, sizes

GATES = {"4": "g1", "9": "g2"}


def wait_leaving(job, *names):
    def is_reached(status):
        states = {w["name"]: w["state"] for w in status["workers"]}
        return all(states.get(name, "leaving") == "leaving" for name in names)

    job.wait_for(is_reached)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1], ids=["term", "usr1"])
def test_s8_a_worker_leaves_at_a_step_boundary_when_it_gets_a_signal(tmp_path, number):
    with running(tmp_path, workers=3) as job:
        job.start("a", gates=GATES)
        job.wait_connected(1)
        job.start("b", "c", gates=GATES)
        job.wait_at("g1")
        job.kill("a", number)  # the first worker, which is the source of the state
        wait_leaving(job, "a")
        job.resize(3)  # does not keep it
        job.open("g1")
        job.join("a")
        job.open("g2")
        results = job.finish()

        assert sizes(job) == [3, 2]
        assert job.workers["a"].exitcode == LEFT == 75
        assert job.workers["b"].exitcode == 0
        assert results["a"]["has_left"]
        assert not results["b"]["has_left"]
        assert results["a"]["step"] < results["b"]["step"]
        check_exactly_once(job)
        check_equals_uninterrupted(job)


def test_a_worker_that_is_ready_leaves_at_once(tmp_path):
    with running(tmp_path, workers=2) as job:
        job.start("a")
        job.wait_ready(1)
        job.kill("a", signal.SIGTERM)
        assert job.join("a")["a"]["has_left"]
        job.start("b", "c")
        job.finish()

        check_exactly_once(job)


def test_a_second_sigterm_ends_a_worker_at_once(tmp_path):
    with running(tmp_path, workers=2) as job:
        job.start("a", "b", gates=GATES)
        job.wait_at("g1")
        job.kill("a", signal.SIGTERM)
        wait_leaving(job, "a")
        job.kill("a", signal.SIGTERM)
        job.workers["a"].join(30)
        assert job.workers["a"].exitcode == 128 + signal.SIGTERM
        for gate in GATES.values():
            job.open(gate)
        job.finish()

        check_exactly_once(job)
        check_equals_uninterrupted(job)


def test_a_worker_that_leaves_while_the_leader_is_down_is_released_when_it_is_back(tmp_path):
    with running(tmp_path, workers=2) as job:
        job.start("a", "b", gates=GATES)
        job.wait_at("g1")
        job.kill_leader()
        job.kill("b", signal.SIGUSR1)
        job.restart_leader()
        wait_leaving(job, "b")
        for gate in GATES.values():
            job.open(gate)
        job.finish()

        assert sizes(job) == [2, 1]
        check_exactly_once(job)
        check_equals_uninterrupted(job)


def test_below_the_minimum_a_leaving_worker_saves_and_the_others_wait(tmp_path):
    options = {"gates": GATES, "checkpoint": str(tmp_path / "ckpt")}
    with running(tmp_path, workers=2, min_workers=2) as job:
        job.start("a", **options)
        job.wait_connected(1)
        job.start("b", **options)
        job.wait_at("g1")
        job.kill("a", signal.SIGUSR1)
        wait_leaving(job, "a")
        job.open("g1")
        job.join("a")  # it is released after it has saved
        assert (tmp_path / "ckpt").exists()
        status = job.wait_for(lambda s: s["state"] == "waiting")
        assert [w["phase"] for w in status["workers"]] == ["paused"]
        assert 0.1 < status["saved"] < 0.5
        job.open("g2")
        job.start("c", **options)
        job.finish()

        assert sizes(job) == [2, 2]
        assert "saved by worker a." in job.log()
        check_exactly_once(job)
        check_equals_uninterrupted(job)


def test_a_job_whose_workers_all_leave_is_suspended_and_continues_from_its_checkpoint(tmp_path):
    options = {"gates": GATES, "checkpoint": str(tmp_path / "ckpt")}
    with running(tmp_path, workers=2) as job:
        job.start("a", "b", **options)
        job.wait_at("g1")
        job.kill("a", signal.SIGTERM)
        job.kill("b", signal.SIGUSR1)
        wait_leaving(job, "a", "b")
        job.open("g1")
        results = job.join()

        assert job.leader.wait(30) == SUSPENDED == 75
        assert all(one["has_left"] for one in results.values())
        step = results["a"]["step"]
        last = job.records()[-1]
        assert (last["type"], last["cursor"]["step"]) == ("suspended", step)
        said = f"job suspended at step {step}; start it again to continue from its checkpoint"
        assert said in job.log()

        prepare(job.folder, JobConfig(1))
        job.leader = start_leader(job.folder, tmp_path)
        job.open("g2")
        job.start("c", **options)
        job.finish()
        assert job.records()[1]["cursor"]["step"] == step
        assert job.rows("c")[0]["step"] == step
        check_equals_uninterrupted(job)


def test_without_a_checkpoint_a_suspended_job_says_that_nothing_is_saved(tmp_path):
    with running(tmp_path, workers=1) as job:
        job.start("a", gates=GATES)
        job.wait_at("g1")
        job.kill("a", signal.SIGTERM)
        wait_leaving(job, "a")
        job.open("g1")
        job.join()

        assert job.leader.wait(30) == SUSPENDED
        assert "nothing is saved (no checkpoint is configured)" in job.log()


def test_survivors_of_a_kill_below_the_minimum_save_and_can_leave(tmp_path):
    options = {"gates": GATES, "checkpoint": str(tmp_path / "ckpt")}
    with running(tmp_path, workers=2, min_workers=2) as job:
        job.start("a", "b", **options)
        job.wait_at("g1")
        job.kill("b")
        job.open("g1")
        job.wait_for(lambda s: s["saved"] > 0 and s["state"] == "waiting")
        assert (tmp_path / "ckpt").exists()
        job.kill("a", signal.SIGTERM)  # it is paused
        assert job.join("a")["a"]["has_left"]

        assert job.leader.wait(30) == SUSPENDED


def test_a_resize_with_names_decides_which_workers_leave_and_join(tmp_path):
    with running(tmp_path, workers=2) as job:
        job.start("a", "b", gates=GATES)
        job.wait_at("g1")
        job.resize(2, ["b", "d"])  # a leaves, c does not join
        job.start("c", "d", gates=GATES)
        job.wait_for(lambda s: len(s["workers"]) == 4)
        job.wait_for(lambda s: all(w["phase"] != "joining" for w in s["workers"]))
        job.kill_leader()
        job.restart_leader()  # the names are in its journal
        job.wait_for(lambda s: len(s["workers"]) == 4 and s["names"] == ["b", "d"])
        job.wait_for(lambda s: all(w["phase"] != "joining" for w in s["workers"]))
        job.open("g1")
        job.join("a")
        job.open("g2")
        assert job.leader.wait(60) == 0
        job.join()

        names = [{m[0].partition(".")[0] for m in r["members"]}
                 for r in job.records() if r["type"] == "generation"]  # fmt: skip
        assert names[-1] == {"b", "d"}
        assert not any("c" in one for one in names)
        check_exactly_once(job)
        check_equals_uninterrupted(job)
