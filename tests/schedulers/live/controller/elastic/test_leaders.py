"""Tests of the leaders of elastic jobs: which folders are removed, and what is followed."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from presage.schedulers.live.controller.elastic.attempts import Attempt
from presage.schedulers.live.controller.elastic.leader_process import LeaderProcess
from presage.schedulers.live.controller.elastic.leaders import Leaders
from presage.training.leader.job_config import read_config


def make_leaders(folder):
    state = SimpleNamespace(cluster_id="c1")
    controller: Any = SimpleNamespace(core=SimpleNamespace(state=state))
    return Leaders(controller, folder, "127.0.0.1")


def make_attempt(name="job", attempt=1, **values):
    names = values.get("names", ("m1", "m2"))
    return Attempt("job", name, 3, attempt, 1, values.get("most", 4), names, False)


def test_only_folders_of_ended_attempts_of_this_cluster_are_removed(tmp_path):
    kept = [
        "thesis/chapters/1.tex",  # a folder of something else
        "c2/3.1/job/job.json",  # another cluster
        "c1/3.2/job/job.json",  # a current attempt
        "c1/notes/job/job.json",
        "c1/3.4/.git/config",
    ]
    for name in (*kept, "c1/3.1/job/job.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()

    make_leaders(tmp_path)._end([], {"3.2"})

    files = (path for path in tmp_path.rglob("*") if path.is_file())
    assert sorted(str(path.relative_to(tmp_path)) for path in files) == sorted(kept)


def test_a_leader_is_started_informed_and_ended(tmp_path):
    leader = LeaderProcess(tmp_path, make_attempt(), "127.0.0.1", "secret")
    try:
        assert leader.follow(make_attempt()) is None  # it is started
        status = leader.follow(make_attempt())
        assert status is not None
        assert (status["state"], status["desired"]) == ("starting", 2)
        assert status["names"] == ["m1", "m2"] or leader.follow(make_attempt())
        assert leader.address is not None
        assert (leader.address.leader_job, leader.address.token) == ("job", "secret")
        assert leader.address.port > 0

        leader.follow(make_attempt(names=("m1", "m2", "m5")))
        status = leader.follow(make_attempt(names=("m1", "m2", "m5")))
        assert status is not None
        assert (status["desired"], status["names"]) == (3, ["m1", "m2", "m5"])
        assert not leader.rejection
        config = read_config(tmp_path / "job" / "job.json")
        assert (config.min_workers, config.max_workers) == (1, 4)
    finally:
        leader.end()
    assert not tmp_path.exists()


def test_a_resize_that_the_leader_rejects_is_reported(tmp_path):
    leader = LeaderProcess(tmp_path, make_attempt(most=2), "127.0.0.1", "secret")
    try:
        leader.follow(make_attempt(most=2))
        leader.follow(make_attempt(most=4, names=("m1", "m2", "m3")))
        assert leader.rejection == "3 workers is outside the job's bounds, 1 to 2"
    finally:
        leader.end()


def test_a_leader_that_hangs_does_not_delay_others(tmp_path):
    leaders = make_leaders(tmp_path)
    followed = []

    async def follow(attempt):
        followed.append(attempt.job_id)
        await asyncio.sleep(3600)

    async def read(_):
        return [make_attempt(attempt=1), make_attempt(attempt=2)]

    leaders._follow, leaders._controller.read = follow, read

    async def run():
        await leaders._step()
        await asyncio.sleep(0)
        await leaders._step()
        await asyncio.sleep(0)

    asyncio.run(run())
    assert len(followed) == 2
