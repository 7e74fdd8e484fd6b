"""Tests of what an agent reports: whole reports, and heartbeats between them."""

from __future__ import annotations

import asyncio

import pytest

from presage.schedulers.health.device_reading import DeviceReading
from presage.schedulers.live.agent import agent as agent_module
from presage.schedulers.live.agent.agent import Agent
from presage.schedulers.live.agent.agent_options import AgentOptions
from presage.schedulers.v1 import cluster_pb2 as pb
from tests.schedulers.live.agent.test_agent import CPU

HEARTBEAT_S = 0.05


@pytest.fixture
def agent(tmp_path):
    made = Agent(
        AgentOptions("a", (CPU,), tmp_path / "a", tmp_path / "points", heartbeat_s=HEARTBEAT_S)
    )
    yield made
    made.close()


async def stream(agent, count, commands):
    """Return the first reports of a stream, each answered by ``commands`` of its position."""
    found = []
    async for report in agent.reports():
        found.append(report)
        if len(found) == count:
            break
        answer = commands(len(found))
        answer.report_number, answer.lease_s = report.number, 60.0
        agent.receive(answer)
    return found


def reports(agent, count, commands):
    return asyncio.run(asyncio.wait_for(stream(agent, count, commands), 30.0))


def test_an_earlier_controller_gets_whole_reports_only(agent):
    found = reports(agent, 4, lambda _: pb.NodeCommands(unchanged=True))

    assert not any(one.unchanged for one in found)
    assert all(one.devices and one.node == "a" for one in found)


def test_a_controller_that_accepts_heartbeats_gets_them_after_a_whole_report(agent):
    found = reports(agent, 4, lambda _: pb.NodeCommands(unchanged=True, heartbeat_s=0.01))

    assert [one.unchanged for one in found] == [False, True, True, True]
    assert found[1] == pb.NodeReport(number=found[1].number, unchanged=True)
    assert [one.number for one in found] == [1, 2, 3, 4]


def test_a_change_is_reported_as_a_whole(agent):
    def commands(position):
        agent.problem = "the disk is full" if position == 2 else agent.problem
        return pb.NodeCommands(unchanged=True, heartbeat_s=0.01)

    found = reports(agent, 4, commands)

    assert [one.unchanged for one in found] == [False, True, False, True]
    assert found[2].problem == "the disk is full"


def test_a_new_stream_begins_with_whole_reports(agent):
    async def two():
        await stream(agent, 3, lambda _: pb.NodeCommands(unchanged=True, heartbeat_s=0.01))
        return await stream(agent, 3, lambda _: pb.NodeCommands(unchanged=True))

    assert not any(one.unchanged for one in asyncio.run(asyncio.wait_for(two(), 30.0)))


def test_progress_is_reported_at_the_pace_of_the_controller(agent, monkeypatch):
    monkeypatch.setattr(agent_module, "RUNNING_REPORT_S", HEARTBEAT_S)
    running = pb.Task(job_id="x", attempt=1, phase=pb.TASK_RUNNING, ran_s=1.0)
    monkeypatch.setattr(agent, "_reported", (1, [running]))
    found = reports(
        agent, 12, lambda _: pb.NodeCommands(unchanged=True, heartbeat_s=0.01, report_s=0.2)
    )

    whole = [one.number for one in found if not one.unchanged]
    assert whole[0] == 1
    assert 2 <= len(whole) <= 6


def test_a_temperature_that_moved_waits_for_the_time_of_a_whole_report(agent, monkeypatch):
    temperatures_c = iter([60.0, 61.0, *[70.0] * 99])
    monkeypatch.setattr(agent_module, "RUNNING_REPORT_S", 0.0)
    monkeypatch.setattr(
        agent._health, "reading", lambda _: DeviceReading(next(temperatures_c), 300.0)
    )
    found = reports(agent, 6, lambda _: pb.NodeCommands(unchanged=True, heartbeat_s=0.01))
    assert [one.unchanged for one in found] == [False, True, False, True, True, True]
    assert found[2].devices[0].temperature_c == 70.0


def test_a_temperature_that_moves_all_the_time_keeps_to_the_pace(agent, monkeypatch):
    temperatures_c = iter(range(10, 990, 10))
    monkeypatch.setattr(agent._health, "reading", lambda _: DeviceReading(next(temperatures_c)))
    pace = pb.NodeCommands(unchanged=True, heartbeat_s=0.01, report_s=60.0)
    found = reports(agent, 6, lambda _: pace)
    assert [one.unchanged for one in found] == [False, *[True] * 5]


def test_the_lease_limits_the_pace_of_the_controller(agent):
    agent.receive(pb.NodeCommands(unchanged=True, heartbeat_s=100.0, lease_s=40.0))

    assert agent.heartbeat_s == 10.0
