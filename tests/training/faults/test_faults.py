"""Kill -9 of any worker at any moment, and of the leader: nothing is lost or done twice."""

from __future__ import annotations

import json
import signal

import pytest

from presage.training.job_folder import FAILED
from tests.training.support.job import running
from tests.training.support.laws import check_equals_uninterrupted, check_exactly_once, sizes

GATES = {"4": "g1", "9": "g2", "14": "g3"}


@pytest.mark.parametrize("order", ["abc", "dcb", "bda"], ids=["first", "last", "any"])
def test_s8_any_worker_may_be_killed_from_four_workers_down_to_one(tmp_path, order):
    with running(tmp_path, workers=4) as job:
        for count, name in enumerate("abcd", 1):  # ranks by their order
            job.start(name, gates=GATES)
            job.wait_connected(count)
        for gate, name in zip(GATES.values(), order, strict=True):
            job.wait_at(gate)
            job.kill(name)
            job.open(gate)
        job.finish()

        assert sizes(job) == [4, 3, 2, 1]
        check_exactly_once(job)
        check_equals_uninterrupted(job)


def test_s8_workers_killed_within_a_sum_lose_no_step(tmp_path):
    """Iterations 0 to 2 of the ring of four add, 3 to 5 replace; of three, 2 is the first of 4."""
    faults = {
        "b": {"step": 4, "iteration": 5}, "c": {"step": 9, "iteration": 2},
        "d": {"step": 14, "iteration": 0},
    }  # fmt: skip
    with running(tmp_path, workers=4) as job:
        job.start("a")
        for name, fault in faults.items():
            job.start(name, fault={"place": "all_reduce", **fault})
        job.finish()

        assert sizes(job) == [4, 3, 2, 1]
        check_exactly_once(job)
        check_equals_uninterrupted(job)


def test_two_workers_killed_at_once(tmp_path):
    with running(tmp_path, workers=4) as job:
        job.start("a", "b", "c", "d", gates=GATES)
        job.wait_at("g1")
        job.kill("a")
        job.kill("c")
        job.open("g1")
        for gate in ("g2", "g3"):
            job.open(gate)
        job.finish()

        assert sizes(job)[-1] == 2
        check_exactly_once(job)
        check_equals_uninterrupted(job)


def test_a_worker_killed_while_the_ring_forms_again(tmp_path):
    with running(tmp_path, workers=4) as job:
        job.start("a", "b", "d", gates=GATES)
        job.start("c", gates=GATES, fault={"place": "form"})
        job.wait_at("g1")
        job.kill("a")  # c dies in the second generation
        for gate in GATES.values():
            job.open(gate)
        job.finish()

        assert sizes(job) == [4, 3, 2]
        check_exactly_once(job)
        check_equals_uninterrupted(job)


def test_the_leader_killed_in_the_middle_of_a_resize(tmp_path):
    with running(tmp_path, workers=2) as job:
        job.start("a", "b", gates=GATES)
        job.wait_at("g1")
        job.kill_leader()
        job.open("g1")  # workers continue without it
        job.wait_at("g2")
        job.restart_leader()
        job.resize(3)
        job.start("c", gates=GATES)
        job.wait_ready(1)
        job.kill_leader()  # the pause is requested
        job.open("g2")
        job.wait_paused_or_at("g3")
        job.restart_leader()
        job.wait_for(lambda s: sum(w["phase"] != "joining" for w in s["workers"]) == 3)
        job.open("g3")
        job.finish()

        assert sizes(job) in ([2, 3], [2, 2, 3])  # the newcomer may connect again after the others
        check_exactly_once(job)
        check_equals_uninterrupted(job)


def test_a_worker_and_the_leader_killed_at_once(tmp_path):
    with running(tmp_path, workers=3, silence_s=3.0) as job:
        job.start("a", "b", "c", gates=GATES)
        job.wait_at("g1")
        job.kill_leader()
        job.kill("a")
        for gate in GATES.values():
            job.open(gate)
        job.restart_leader()  # it removes the worker that does not come back
        job.finish()

        assert sizes(job) == [3, 2]
        check_exactly_once(job)
        check_equals_uninterrupted(job)


def test_a_stopped_worker_is_removed_and_joins_again_when_it_continues(tmp_path):
    with running(tmp_path, workers=3, silence_s=5.0) as job:
        job.start("a", "b", "c", gates=GATES)
        job.wait_at("g1")
        job.kill("b", signal.SIGSTOP)
        job.open("g1")
        job.wait_for(lambda s: s["size"] == 2)
        job.wait_at("g2")
        job.kill("b", signal.SIGCONT)
        job.wait_ready(1)
        for gate in ("g2", "g3"):
            job.open(gate)
        job.finish()

        assert sizes(job) == [3, 2, 3]
        assert "was silent for 5 s: removed" in job.log()
        check_exactly_once(job)
        check_equals_uninterrupted(job)


def test_below_the_minimum_the_job_waits_until_a_worker_joins(tmp_path):
    with running(tmp_path, workers=2, min_workers=2) as job:
        job.start("a", "b", gates={"4": "g1"})
        job.wait_at("g1")
        job.kill("b")
        job.open("g1")
        job.wait_for(lambda s: s["state"] == "waiting")
        job.start("c")
        job.finish()

        assert sizes(job) == [2, 2]
        check_exactly_once(job)
        check_equals_uninterrupted(job)


def test_a_job_whose_workers_all_die_fails_with_a_reason(tmp_path):
    with running(tmp_path, workers=1) as job:
        job.start("a", gates={"4": "g1"})
        job.wait_at("g1")
        job.kill("a")

        assert job.leader.wait(60) == FAILED == 4
        assert "no worker with the job's parameters is left" in job.log()


def test_a_leader_without_its_journal_and_a_worker_killed_at_once(tmp_path):
    with running(tmp_path, workers=3, silence_s=3.0) as job:
        job.start("a", "b", "c", gates=GATES)
        job.wait_at("g1")
        records = job.records()
        job.kill_leader()
        job.folder.journal.unlink()
        job.kill("a")
        for gate in GATES.values():
            job.open(gate)
        job.restart_leader()
        assert job.leader.wait(100) == 0, job.log()
        job.join()

        rows = [*records, *(r for r in job.records() if r["type"] not in ("adopted", "job"))]
        job.folder.journal.write_text("".join(json.dumps(row) + "\n" for row in rows))
        assert sizes(job) == [3, 2]
        check_exactly_once(job)
        check_equals_uninterrupted(job)


@pytest.mark.parametrize("kind", ["refused", "silent"])
def test_of_two_workers_that_cannot_connect_the_later_one_is_removed(tmp_path, kind):
    """Both reach the leader; a third worker reaches all."""
    fault = {"place": "partition", "kind": kind}
    with running(tmp_path, workers=3) as job:
        for count, (name, peers) in enumerate({"a": ["b"], "b": ["a"], "c": []}.items()):
            job.wait_connected(count)  # so that ranks are in this order
            job.start(name, fault={**fault, "peers": peers})
        results = job.finish()

        assert "cannot connect to a." in job.log()
        assert "cannot connect to a." in results["b"]["error"]
        assert "\n" not in results["b"]["error"]
        assert sizes(job)[-1] == 2
        check_exactly_once(job)
        check_equals_uninterrupted(job)


@pytest.mark.parametrize("kind", ["refused", "silent"])
def test_a_partition_that_begins_at_a_change_leaves_the_others_training(tmp_path, kind):
    fault = {"place": "partition", "kind": kind, "generation": 2}
    with running(tmp_path, workers=2) as job:
        job.start("a", gates=GATES, fault={**fault, "peers": ["b"]})
        job.wait_connected(1)
        job.start("b", gates=GATES, fault={**fault, "peers": ["a"]})
        job.wait_at("g1")
        job.resize(3)
        job.start("c", gates=GATES, fault={**fault, "peers": []})
        job.wait_ready(1)
        for gate in GATES.values():
            job.open(gate)
        results = job.finish()

        assert "cannot connect to a." in results["b"]["error"]
        assert sizes(job)[-1] == 2
        check_exactly_once(job)
        check_equals_uninterrupted(job)
