"""Full disks, quick changes of size, and scripts with errors: real processes."""

from __future__ import annotations

import resource

import pytest

from presage.errors import ElasticError
from presage.training.job_folder import SUSPENDED
from tests.training.support.job import running
from tests.training.support.laws import check_equals_uninterrupted, check_exactly_once, sizes

GATES = {"4": "g1", "9": "g2"}


def test_with_a_full_disk_for_the_journal_no_change_happens_until_there_is_space(tmp_path):
    with running(tmp_path, workers=3) as job:
        job.start("a", "b", "c", gates=GATES)
        job.wait_at("g1")
        _, hard = resource.prlimit(job.leader.pid, resource.RLIMIT_FSIZE)
        full = job.folder.journal.stat().st_size
        resource.prlimit(job.leader.pid, resource.RLIMIT_FSIZE, (full, hard))
        with pytest.raises(ElasticError) as error:
            job.resize(2)
        assert "\n" not in str(error.value)
        job.kill("b")
        job.open("g1")
        status = job.wait_for(lambda s: s["state"] == "waiting")
        assert status["reason"].endswith("the job waits")
        assert status["generation"] == 1
        resource.prlimit(job.leader.pid, resource.RLIMIT_FSIZE, (hard, hard))
        job.open("g2")
        job.finish()

        assert sizes(job) == [3, 2]
        check_exactly_once(job)
        check_equals_uninterrupted(job)


def test_with_a_full_disk_for_the_checkpoint_the_job_trains_and_can_leave(tmp_path):
    on_disk = {"checkpoint": str(tmp_path / "ckpt"), "checkpoint_interval_s": 0.0}
    with running(tmp_path, workers=1) as job:
        job.start("a", gates=GATES, fault={"place": "checkpoint"}, **on_disk)
        job.wait_at("g1")
        job.wait_for(lambda s: s["saved"] == 0 and s["done"] > 0)
        job.resize(1, ["b"])
        job.open("g1")
        job.wait_at("g2")
        assert job.log().count("is not written") == 1  # of many
        job.kill("a", 15)
        job.wait_for(lambda s: s["workers"][0]["state"] == "leaving")
        job.open("g2")
        assert job.join("a")["a"]["has_left"]

        assert job.leader.wait(30) == SUSPENDED
        assert "No space left on device" in job.log().splitlines()[-1]


def test_twenty_quick_changes_of_size_lose_nothing(tmp_path):
    options = {"epochs": 30, "step_s": 0.01, "gates": {"200": "last"}}
    with running(tmp_path, workers=2) as job:
        job.start("a", "b", **options)
        job.wait_for(lambda s: s["size"] == 2)
        for i in range(10):
            job.resize(3)
            job.start(f"n{i}", **options)
            if i % 2:  # of the others, the newcomer is ready when it is not requested any more
                job.wait_for(lambda s: s["size"] == 3)
            job.resize(2)
        job.wait_at("last")
        job.open("last")
        job.finish()

        assert len(job.records()) > 20
        assert sizes(job)[-1] == 2
        check_exactly_once(job, epochs=30)
        check_equals_uninterrupted(job, epochs=30)


def test_a_script_that_skips_a_step_ends_and_the_others_continue(tmp_path):
    with running(tmp_path, workers=2) as job:
        job.start("a")
        job.start("b", skip_apply=3)
        results = job.finish()

        assert results["b"]["error"].startswith("ElasticError: step 3 was not applied; call")
        check_exactly_once(job)
        check_equals_uninterrupted(job)


def test_a_newcomer_with_another_data_set_is_rejected_by_one_line(tmp_path):
    with running(tmp_path, workers=1) as job:
        job.start("a", digest="x", gates=GATES)
        job.wait_at("g1")
        job.resize(2)
        job.start("b", digest="y")
        job.join("b")
        for gate in GATES.values():
            job.open(gate)
        error = job.finish()["b"]["error"]

        assert "another data_set than the job: another digest of the data set" in error
        assert "\n" not in error
        assert sizes(job) == [1]


def test_a_newcomer_with_another_number_of_epochs_ends_and_the_others_continue(tmp_path):
    with running(tmp_path, workers=1) as job:
        job.start("a", gates=GATES)
        job.wait_at("g1")
        job.resize(2)
        job.start("b", epochs=4)
        job.wait_ready(1)
        for gate in GATES.values():
            job.open(gate)
        error = job.finish()["b"]["error"]

        assert "another number of epochs (3, this script has 4)" in error
        assert sizes(job) == [1, 2, 1]
        check_exactly_once(job)
        check_equals_uninterrupted(job)


def test_more_workers_than_samples_of_a_batch_are_rejected_by_one_line(tmp_path):
    with running(tmp_path, workers=1) as job:
        job.start("a", batch=2, gates=GATES)
        job.wait_at("g1")
        with pytest.raises(ElasticError, match="batch=2 is less than 3 workers"):
            job.resize(3)
        for gate in GATES.values():
            job.open(gate)
        job.finish()

        check_exactly_once(job, batch=2)
