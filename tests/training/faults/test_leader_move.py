"""A leader on another machine takes over from one that is lost, or that still runs."""

from __future__ import annotations

import json

from presage.training.job_folder import UNFINISHED
from tests.training.support.job import running
from tests.training.support.laws import check_equals_uninterrupted, check_exactly_once, sizes

GATES = {"4": "g1", "9": "g2", "14": "g3"}


def test_s1_a_leader_of_another_controller_continues_from_its_workers(tmp_path):
    """It has another token, and not the journal: no step is lost or repeated."""
    with running(tmp_path, workers=2) as job:
        job.start("a", "b", gates=GATES)
        job.wait_at("g1")
        records = job.records()
        job.kill_leader()
        for name in ("journal.jsonl", "token"):
            (job.folder.path / name).unlink()
        job.open("g1")  # workers continue
        job.wait_at("g2")
        job.start_successor()
        job.wait_for(lambda s: [w["phase"] for w in s["workers"]] == ["running"] * 2)
        job.resize(3)
        job.start("c", gates=GATES)
        job.wait_ready(1)
        for gate in ("g2", "g3"):
            job.open(gate)
        assert job.leader.wait(100) == 0, job.log()
        job.join()

        adopted = job.records()
        assert [r["type"] for r in adopted[:3]] == ["job", "adopted", "formed"]
        assert adopted[1]["generation"] == 1
        rows = [*records, *(r for r in adopted if r["type"] not in ("adopted", "job"))]
        job.leader_folder.journal.write_text("".join(json.dumps(row) + "\n" for row in rows))
        assert sizes(job) == [2, 3]
        check_exactly_once(job)
        check_equals_uninterrupted(job)
        assert len({r["step"] for r in job.rows("a")}) == len(job.rows("a"))


def test_workers_leave_a_leader_that_runs_for_the_one_that_their_folder_names(tmp_path):
    with running(tmp_path, workers=2) as job:
        job.start("a", "b", gates=GATES)
        job.wait_at("g1")
        records, former = job.records(), job.leader
        assert records[-1]["type"] == "formed"
        log = job.folder.path / "leader.log"
        try:
            job.start_successor()
            job.wait_for(lambda s: [w["phase"] for w in s["workers"]] == ["running"] * 2)
            assert former.wait(30) == UNFINISHED
        finally:
            former.kill()
        assert "changes to another leader; this one ends" in log.read_text()
        assert job.folder.leader().pid == job.leader.pid
        for gate in GATES.values():
            job.open(gate)
        assert job.leader.wait(100) == 0, job.log()
        job.join()

        rows = [*records, *(r for r in job.records() if r["type"] not in ("adopted", "job"))]
        job.leader_folder.journal.write_text("".join(json.dumps(row) + "\n" for row in rows))
        assert sizes(job) == [2]
        check_exactly_once(job)
        check_equals_uninterrupted(job)


def test_newcomers_that_reach_a_successor_first_wait_for_the_members(tmp_path):
    with running(tmp_path, workers=1) as job:
        job.start("a", gates=GATES)
        job.wait_at("g1")
        job.kill_leader()
        job.kill("a", 19)  # SIGSTOP: it comes back after the newcomer
        job.start_successor()
        job.start("c", gates=GATES)
        job.wait_ready(1)
        assert job.status()["generation"] == 0
        job.kill("a", 18)
        job.wait_for(lambda s: s["generation"] == 1)
        for gate in GATES.values():
            job.open(gate)
        job.finish()

        assert "generation 1 of 1 workers adopted" in job.log()
        check_equals_uninterrupted(job)
