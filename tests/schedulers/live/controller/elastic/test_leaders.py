"""Tests of the leaders of elastic jobs: which folders are removed, and what is followed."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from functools import partial
from types import SimpleNamespace
from typing import ClassVar

from presage.schedulers.live.controller.elastic import leaders as module
from presage.schedulers.live.controller.elastic.attempts import Attempt
from presage.schedulers.live.controller.elastic.leader_process import LeaderProcess
from presage.schedulers.live.controller.elastic.leaders import Leaders
from presage.training.leader.job_config import read_config
from tests.support.waiting import async_wait_until


class FakeController:
    """Controller whose cluster always has the same attempts."""

    def __init__(self, *attempts):
        self.core = SimpleNamespace(state=SimpleNamespace(cluster_id="c1"))
        self.journal = SimpleNamespace(last_seq=0, token=lambda name: "secret")
        self.attempts, self.checks = list(attempts), 0

    async def read(self, function):
        if isinstance(function, partial):  # a status is noted
            return []
        self.checks += 1
        return self.attempts

    async def wait_for_entry_after(self, seq):
        await asyncio.Event().wait()


class FakeLeader:
    """Leader that notes in ``followed`` the folders of the attempts it is to follow."""

    address, rejection, problem = None, "", ""
    followed: ClassVar[list[str]] = []
    hangs: threading.Event | None = None

    def __init__(self, folder, attempt, host, token):
        self.name = folder.name

    def follow(self, attempt):
        self.followed.append(self.name)
        if self.hangs is not None:
            self.hangs.wait(60)

    def end(self):
        raise AssertionError("a current leader is ended")


def run_leaders(controller, folder, *, checks):
    """Run the leaders of a controller until it was checked so often."""

    async def main():
        running = asyncio.create_task(Leaders(controller, folder, "127.0.0.1").run())
        await async_wait_until(lambda: controller.checks > checks)
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        if FakeLeader.hangs is not None:
            FakeLeader.hangs.set()

    asyncio.run(main())


def make_attempt(name="job", attempt=1, **values):
    names = values.get("names", ("m1", "m2"))
    return Attempt("job", name, 3, attempt, 1, values.get("most", 4), names, False)


def test_only_folders_of_ended_attempts_of_this_cluster_are_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "LeaderProcess", FakeLeader)
    monkeypatch.setattr(module, "STATUS_S", 0.01)
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

    run_leaders(FakeController(make_attempt(attempt=2)), tmp_path, checks=1)

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


def test_a_leader_that_hangs_does_not_delay_others(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "LeaderProcess", FakeLeader)
    monkeypatch.setattr(module, "STATUS_S", 0.01)
    monkeypatch.setattr(FakeLeader, "hangs", threading.Event())
    monkeypatch.setattr(FakeLeader, "followed", [])
    attempts = make_attempt(attempt=1), make_attempt(attempt=2)

    run_leaders(FakeController(*attempts), tmp_path, checks=3)

    assert sorted(FakeLeader.followed) == ["3.1", "3.2"]
