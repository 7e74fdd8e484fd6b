"""Output of an arbiter for users: explanations, savings, time line and problems of switches."""

from __future__ import annotations

import asyncio
import logging
import math
import time

import pytest

from presage.collectives.arbiter.client import ArbiterClient
from presage.collectives.arbiter.domain import DEFAULT_LINK
from presage.collectives.arbiter.jobs import Job
from presage.collectives.arbiter.ranks.rank_entry import RankEntry
from presage.collectives.arbiter.server import service, status
from presage.collectives.arbiter.server.service import ArbiterService
from presage.collectives.arbiter.timeline.recent import RecentDecisions, Row, newest_rows
from presage.collectives.core.costs import time_saved_s
from presage.collectives.core.view import Reason
from presage.collectives.v1 import arbiter_pb2 as pb
from presage.errors import InvalidRequestError, UnknownJobError
from tests.cli.test_terminal import run
from tests.collectives.arbiter.test_membership import MachineControl, running, updates
from tests.support.waiting import async_wait_until


def decisions(*rows):
    return pb.RankMessage(report=pb.Report(decisions=rows, counts=pb.Counts(inc=2, ring=1)))


def decision(number, *, way=pb.INC, reason=Reason.NO_OTHER_ARRIVAL, size=1 << 20, duration_s=0.003):
    return pb.Decision(
        number=number, age_s=0.1, duration_s=duration_s, size_bytes=size, reason=reason, way=way
    )


def test_a_past_allreduce_is_explained_by_its_recorded_reason(tmp_path):
    async def scenario():
        async with running(tmp_path / "a.db", MachineControl()) as arbiter:
            streams, _ = await updates(arbiter, [[], []])
            rows = [decision(18, way=pb.RING, reason=Reason.IN_USE, duration_s=0.0), decision(19)]
            await arbiter.receive(streams[0], decisions(*rows))
            ring, switch = (status.explain(arbiter, "job", number) for number in (18, 19))
        assert (ring.is_allowed, ring.reason) == (False, Reason.IN_USE)
        assert (switch.is_allowed, switch.reason) == (True, Reason.NO_OTHER_ARRIVAL)
        assert "it ran by ring" in ring.details  # its duration was not measured
        assert "it ran on the switch in 3.000 ms" in switch.details

    asyncio.run(scenario())


def test_savings_are_computed_from_size_ranks_and_link(tmp_path):
    async def scenario():
        async with running(tmp_path / "a.db", MachineControl()) as arbiter:
            streams, _ = await updates(arbiter, [[], []])
            rows = [decision(21), decision(22, way=pb.RING), decision(23, size=3 << 20)]
            arbiter.jobs.by_name["job"].size = 3  # two ranks save nothing
            for stream in streams:  # both ranks report the same AllReduces
                await arbiter.receive(stream, decisions(*rows))
            (job,) = status.status(arbiter).jobs
        expected_s = sum(time_saved_s(3, size, DEFAULT_LINK) for size in (1 << 20, 3 << 20))
        assert expected_s > 0
        assert job.counts.saved_s == pytest.approx(expected_s)
        assert job.mean_saved_s == pytest.approx(expected_s / 2)
        assert (job.counts.inc, job.counts.ring) == (2, 1)
        assert arbiter.jobs.by_name["job"].largest_bytes == 3 << 20

    asyncio.run(scenario())


def test_a_time_line_does_not_depend_on_the_wall_clock(tmp_path, monkeypatch):
    async def scenario():
        async with running(tmp_path / "a.db", MachineControl()) as arbiter:
            streams, _ = await updates(arbiter, [[], []])
            monkeypatch.setattr(time, "time", lambda: 2e9)
            await arbiter.receive(streams[0], decisions(decision(21)))
            monkeypatch.setattr(time, "time", lambda: 1e9)
            serving = ArbiterService(arbiter, None, 1)  # type: ignore[arg-type]
            request = pb.TimelineRequest(last_s=10.0).SerializeToString()
            found = pb.TimelineResponse.FromString(await serving.timeline(request, None))  # type: ignore[arg-type]
        (row,) = found.rows
        assert 0.1 <= row.decision.age_s < 5

    asyncio.run(scenario())


def test_decisions_that_cannot_be_are_skipped(tmp_path):
    async def scenario():
        async with running(tmp_path / "a.db", MachineControl()) as arbiter:
            streams, _ = await updates(arbiter, [[], []])
            wrong = decision(25)
            wrong.way = 17
            await arbiter.receive(streams[0], decisions(wrong, decision(26, size=1 << 60)))
            assert not arbiter.recent.of_job("job")

    asyncio.run(scenario())


def test_a_time_line_has_the_newest_rows_of_bounded_number():
    rows = [
        Row(f"job-{job}", (), number, 100.0 * number + job, 0.1, 1, Reason.IN_USE, pb.RING)
        for job in range(3)
        for number in range(50)
    ]
    of_jobs = [rows[start : start + 50] for start in (0, 50, 100)]
    found = newest_rows(of_jobs, 0.0, 1e9, most=6)
    assert [(row.number, row.job) for row in found] == [
        (number, f"job-{job}") for number in (48, 49) for job in range(3)
    ]
    assert len(newest_rows(of_jobs, 101.5, 4902.0)) == 5


def test_a_stream_without_a_registration_ends(monkeypatch):
    monkeypatch.setattr(service, "FIRST_MESSAGE_S", 0.05)

    async def silent():
        await asyncio.sleep(60)
        yield b""

    async def scenario():
        serving = ArbiterService(None, None, 1)  # type: ignore[arg-type]
        with pytest.raises(InvalidRequestError, match="no registration"):
            await anext(serving.connect(silent(), None))  # type: ignore[arg-type]
        assert serving.streams == 0

    asyncio.run(scenario())


@pytest.mark.parametrize("last_s", [math.nan, math.inf, -3.0])
def test_a_time_line_of_an_impossible_time_is_rejected(last_s):
    request = pb.TimelineRequest(last_s=last_s).SerializeToString()
    serving = ArbiterService(None, None, 1)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match="last_s="):
        asyncio.run(serving.timeline(request, None))  # type: ignore[arg-type]


def test_a_switch_that_was_never_reached_is_logged_once(tmp_path, caplog):
    caplog.set_level(logging.INFO)

    async def scenario():
        control = MachineControl()
        control.is_reachable = False
        async with running(tmp_path / "a.db", control) as arbiter:
            await async_wait_until(lambda: control.failures >= 4)  # three are handled
            assert sum("no route" in str(record.__dict__) for record in caplog.records) == 1
            control.is_reachable = True
            await async_wait_until(lambda: not arbiter.switches.unreachable)

    asyncio.run(scenario())


@pytest.mark.parametrize("name", ["\udcff\udcfe", "", "two words"])
def test_a_name_that_no_job_can_have_is_an_unknown_job(name):
    with ArbiterClient("127.0.0.1:1") as client, pytest.raises(UnknownJobError):
        client.explain(name)


@pytest.mark.parametrize("words", [["job", "9" * 23], ["job", "-1"]])
def test_a_number_out_of_range_is_wrong_usage(monkeypatch, words):
    assert run(monkeypatch, "inc", "explain", *words) == 2


def test_a_report_of_a_rank_that_counts_as_gone_is_skipped():
    entry = RankEntry("instance", "node", gone_s=1.0)
    job = Job("job", 1, b"t", 1, ranks={0: entry})
    assert RecentDecisions().add(job, 0, [decision(1)], 0.0) == ()
