"""Tests of heartbeats that repeat the last whole report of an agent."""

from __future__ import annotations

import asyncio
import math

import pytest

from presage.errors import InvalidRequestError
from presage.schedulers.live.controller.journal.journal import Journal
from presage.schedulers.live.controller.node_commands import make_pace
from presage.schedulers.live.controller.server import node_service
from presage.schedulers.live.controller.server.job_logs import Logs
from presage.schedulers.live.controller.server.node_service import _Stream
from presage.schedulers.v1 import cluster_pb2 as pb
from presage.serving.authentication.callers import Caller
from tests.schedulers.live.controller.test_controller import controller, report
from tests.schedulers.live.controller.test_core import World, ended, task
from tests.support.waiting import async_stays_true, async_wait_until


def heartbeat(number):
    return pb.NodeReport(number=number, unchanged=True)


def test_some_heartbeats_are_acknowledged_like_reports(tmp_path, monkeypatch):
    async def answers(working):
        await working.begin()
        running = asyncio.create_task(working.run())
        await async_wait_until(lambda: working.report(report(1)))
        stream = _Stream(working, Logs(working), Caller("a", frozenset({"agent"})))
        await stream.receive(report(2))
        commands = stream.commands(asyncio.create_task(asyncio.sleep(60)))
        first = await anext(commands)
        await stream.receive(heartbeat(3))
        following = asyncio.create_task(anext(commands))
        assert await async_stays_true(lambda: not following.done(), 0.2)
        monkeypatch.setattr(node_service, "ANSWERS_PER_LEASE", math.inf)
        await stream.receive(heartbeat(4))
        second = await following
        running.cancel()
        return first, second

    with Journal.open(f"{tmp_path}/journal.db") as journal:
        first, second = asyncio.run(answers(controller(journal)))
    assert (first.report_number, second.report_number) == (2, 4)
    assert second.unchanged
    assert second.heartbeat_s > 0


def test_a_stream_begins_with_a_whole_report(tmp_path):
    async def rejected(working):
        await working.begin()
        stream = _Stream(working, Logs(working), Caller("a", frozenset({"agent"})))
        with pytest.raises(InvalidRequestError, match="the name must have"):
            await stream.receive(heartbeat(1))

    with Journal.open(f"{tmp_path}/journal.db") as journal:
        asyncio.run(rejected(controller(journal)))


@pytest.fixture
def world():
    """Return a cluster with a running job, whose node has reported all that there is."""
    made = World()
    made.report("a")
    made.submit("x", model="500")
    made.decide()
    made.report("a", tasks=[task("x")])
    made.report("a", tasks=[task("x")])
    return made


def repeats(world, node="a"):
    last = world.core.nodes[node].report
    return world.core.note_repeat(last, world.now_s)


def test_a_heartbeat_renews_the_time_of_a_report(world):
    world.now_s = 9.0
    assert repeats(world)

    assert world.core.nodes["a"].reported_s == 9.0
    assert world.core.is_connected("a", 18.0)
    assert not world.core.find_lost(9.0 + 20.0, 0.0)


@pytest.mark.parametrize("change", ["cancel", "drain", "device", "submit and place"])
def test_a_report_is_processed_again_after_a_change_of_its_node(world, change):
    assert repeats(world)
    version = world.core.commands_version("a")
    if change == "cancel":
        world.write(world.core.cancel(["x"], world.now_s, 0.0))
    elif change == "submit and place":
        world.submit("y", model="300")
        world.decide()
    else:
        name = "a" if change == "drain" else "a/0"
        world.write(world.core.drain(name, undo=False, evict=True, now_s=world.now_s))

    assert not repeats(world)
    assert world.core.commands_version("a") != version
    assert world.core.commands("a").version == world.core.commands_version("a")


def test_a_report_that_was_not_recorded_is_processed_again(world):
    message = pb.NodeReport()
    message.CopyFrom(world.core.nodes["a"].report)
    message.ClearField("tasks")
    message.tasks.append(ended("x", finished=True))
    assert world.core.report(message, world.now_s, 0.0)  # the disk is full
    world.core.unsettle("a")
    world.core.note_report(message, world.now_s)

    assert not world.core.note_repeat(message, world.now_s)
    assert world.core.report(message, world.now_s, 0.0)


def test_only_the_last_report_of_a_node_can_be_repeated(world):
    earlier = world.core.nodes["a"].report
    world.report("a", tasks=[task("x", ran_s=2.0)])

    assert not world.core.note_repeat(earlier, world.now_s)
    assert repeats(world)


def test_a_silent_node_that_reports_again_is_processed_in_full(world):
    world.now_s = 15.0
    assert world.core.view(world.now_s) is None

    assert not repeats(world)


def test_agents_report_more_slowly_in_larger_clusters_as_far_as_leases_allow():
    small, large = (make_pace(n, lease_s=120.0, suspect_s=15.0) for n in (10, 10_000))

    assert small.heartbeat_s < 0.01
    assert small.report_s <= 0.1
    assert 5.0 < large.heartbeat_s < 15.0 / 2
    assert math.isclose(large.report_s, 100.0)
    assert make_pace(10**6, lease_s=8.0, suspect_s=15.0).heartbeat_s == 2.0
    assert make_pace(10**6, lease_s=120.0, suspect_s=15.0).heartbeat_s == 7.5
