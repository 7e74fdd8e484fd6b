"""Workers join and leave: real processes with torch, against an uninterrupted run."""

from __future__ import annotations

import pytest

from presage.errors import ElasticError
from presage.training import elastic
from tests.training.support.job import running
from tests.training.support.laws import (
    check_equals_uninterrupted,
    check_exactly_once,
    sizes,
    uninterrupted,
)


def grow_and_shrink(job, **options):
    """2 workers, 3 from step 6 on, 2 from step 15 on."""
    options = {"gates": {"5": "grow", "14": "shrink"}} | options
    job.start("a", "b", **options)
    job.wait_at("grow")
    job.resize(3)
    job.start("c", **options)
    job.wait_ready(1)
    job.open("grow")
    job.wait_at("shrink")
    job.resize(2)
    job.open("shrink")
    return job.finish()


def test_s7_a_worker_joins_at_a_step_boundary_and_s8_one_leaves(tmp_path):
    with running(tmp_path, workers=2) as job:
        results = grow_and_shrink(job)

        assert sizes(job) == [2, 3, 2]
        cursors = [r["cursor"]["step"] for r in job.records() if r["type"] == "generation"]
        assert 0 == cursors[0] < 6 <= cursors[1] < 15 <= cursors[2]
        check_exactly_once(job)
        check_equals_uninterrupted(job)
        first = job.rows("c")[0]
        assert (first["step"], first["entry"]) == (cursors[1], "breakpoint")
        assert job.rows("a")[0]["entry"] == "train"
        assert results["c"]["step"] == cursors[2]  # it left with the last rank
        assert results["a"]["parameters"] == results["b"]["parameters"]


def test_a_model_wrapped_in_distributed_data_parallel_grows_shrinks_and_loses_a_worker(tmp_path):
    with running(tmp_path, workers=2) as job:
        grow_and_shrink(job, is_wrapped=True)
        check_exactly_once(job)
        check_equals_uninterrupted(job)  # of the bare model

    with running(tmp_path, "killed", workers=3) as job:
        job.start("a", "c", is_wrapped=True)
        fault = {"place": "all_reduce", "step": 7}
        job.start("b", is_wrapped=True, fault=fault)
        job.finish()
        assert sizes(job) == [3, 2]
        check_equals_uninterrupted(job)


def test_a_deterministic_job_is_bitwise_equal_to_an_uninterrupted_one(tmp_path):
    options = {"deterministic": True, "dropout": 0.3, "no_norm": False}
    expected, _ = uninterrupted(**options)
    with running(tmp_path, workers=2) as job:
        results = grow_and_shrink(job, **options)

        assert sizes(job) == [2, 3, 2]
        assert results["a"] == expected
        assert results["b"] == expected


def test_s8_batch_and_learning_rate_follow_the_size_with_a_callback(tmp_path):
    with running(tmp_path, workers=2) as job:
        results = grow_and_shrink(job, resize="scale", epochs=6)

        assert sizes(job) == [2, 3, 2]
        for size in (2, 3):  # 24 and 36 samples over the workers
            assert max(len(r["indices"]) for r in job.rows("a") if r["size"] == size) == 12
        taken = [i for n in "abc" for r in job.rows(n) if r["epoch"] == 1 for i in r["indices"]]
        assert sorted(taken) == list(range(96))
        assert results["a"]["parameters"] == results["b"]["parameters"]


def test_a_newcomer_that_dies_or_never_gets_ready_changes_nothing(tmp_path):
    with running(tmp_path, workers=2) as job:
        job.start("a", "b", gates={"5": "first", "10": "second"})
        job.wait_at("first")
        job.resize(3)
        job.start("c", fault={"place": "begin"})  # it dies when it has joined
        job.wait_ready(1)
        job.open("first")
        job.join("c")
        job.start("d", width=16)  # another model: rejected
        job.join("d")
        job.start("e", samples=95)
        job.join("e")
        job.start("f", samples=0)
        job.join("f")
        job.open("second")
        results = job.finish()

        assert sizes(job) == [2, 3, 2]
        assert "another model than the job" in results["d"]["error"]
        assert "another samples than the job" in results["e"]["error"]
        assert "samples=0: the data set is empty" in results["f"]["error"]
        check_exactly_once(job)
        check_equals_uninterrupted(job)


@pytest.mark.parametrize(("place", "victim"), [("capture", "a"), ("restore", "c")])
def test_s7_a_death_during_the_transfer_of_the_state_loses_nothing(tmp_path, place, victim):
    with running(tmp_path, workers=2) as job:
        options = {"gates": {"5": "grow"}}
        armed = {"fault": {"place": place}}
        job.start("a", **options, **(armed if victim == "a" else {}))
        job.wait_ready(1)  # it is the first worker, which sends the state
        job.start("b", **options)
        job.wait_at("grow")
        job.resize(3)
        job.start("c", **(armed if victim == "c" else {}))
        job.wait_ready(1)
        job.open("grow")
        job.finish()

        assert sizes(job) == [2, 3, 2]
        check_exactly_once(job)
        check_equals_uninterrupted(job)


def test_a_deterministic_job_of_more_workers_than_virtual_shards_leaves_one_ready(tmp_path):
    options = {"deterministic": True, "virtual_shards": 2, "gates": {"4": "g1", "9": "g2"}}
    with running(tmp_path, workers=3) as job:
        for count, name in enumerate("abc", 1):
            job.start(name, **options)
            job.wait_connected(count)
        job.wait_at("g1")
        assert "the job trains with at most 2 workers" in job.log()
        assert job.status()["capacity"] == 2
        with pytest.raises(ElasticError, match="virtual_shards=2 is less than 9 workers"):
            job.resize(9)
        job.wait_ready(1)
        job.kill("a")
        job.open("g1")
        job.open("g2")
        job.finish()

        assert sizes(job) == [2, 2]  # the third worker takes the place of the first
        assert job.workers["c"].exitcode == 0


def test_a_batch_of_on_resize_below_the_size_leaves_workers_without_samples(tmp_path):
    with running(tmp_path, workers=3) as job:
        job.start("a", "b", "c", resize="few", epochs=1)
        results = job.finish()

        said = "on_resize returned batch=2 for 3 workers: 1 of them have no sample"
        assert said in job.log()
        assert {one["step"] for one in results.values()} == {48}
        assert results["a"]["parameters"] == results["c"]["parameters"]
    with pytest.raises(ElasticError, match="batch=0 is less than 1 workers"):
        elastic.SizeSettings(batch=0)
