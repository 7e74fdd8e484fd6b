"""A job that comes back: no number is split, whatever views its ranks have missed.

The arbiter runs in this process, with the verified switch machine as its switch.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from dataclasses import replace

import pytest

from presage.collectives.arbiter import agreement
from presage.collectives.arbiter.arbiter import Arbiter
from presage.collectives.arbiter.arbiter_options import ArbiterOptions
from presage.collectives.arbiter.domain import one_switch, parse_switch
from presage.collectives.arbiter.journal import Journal
from presage.collectives.arbiter.switches import SwitchSet
from presage.collectives.arbiter.wire import from_arbiter, view_to_wire
from presage.collectives.core import switch as switch_machine
from presage.collectives.core.in_band import InBandAgreement
from presage.collectives.core.messages import Admitted, Hello, Member, ViewUpdate
from presage.collectives.core.switch import SwitchState
from presage.collectives.core.view import JobView
from presage.collectives.switch.errors import OldAdmissionError, SwitchLostError
from presage.collectives.switch.protocol import Code
from presage.collectives.v1 import arbiter_pb2 as pb
from presage.errors import JournalError
from tests.support.waiting import async_stays_true, async_wait_until


class MachineControl:
    """Control of the verified switch machine."""

    def __init__(self) -> None:
        self.state = SwitchState(1, incarnation=7)
        self.is_reachable = True
        self.failures = 0

    def hello(self, known):
        if not self.is_reachable:
            self.failures += 1
            raise SwitchLostError("no route")
        return Hello(self.state.incarnation)

    def admit(self, admission):
        self.hello(0)
        self.state, messages = switch_machine.receive(self.state, admission)
        found = [message for message in messages if isinstance(message, Admitted)]
        if not found:
            raise OldAdmissionError("an older admission", Code.OLD_ADMISSION)
        return found[0]

    def newest(self):
        return max(dict(self.state.floors).values(), default=0), self.state.token


OPTIONS = ArbiterOptions(plan_s=0.05, resend_s=0.1, lease_s=0.3)
GRANTED = b"\1" * 50


@contextlib.asynccontextmanager
async def running(path, control, options=OPTIONS, clock=time.monotonic):
    journal = Journal(path)
    switches = SwitchSet(one_switch(parse_switch("tor=h:1")), {"tor": control})
    arbiter = Arbiter(switches, journal, options, clock=clock)
    await arbiter.start()
    task = asyncio.create_task(arbiter.run())
    try:
        yield arbiter
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        journal.close()


def registration(rank, views):
    return pb.Registration(
        job="job", rank=rank, ranks=2, job_token_sha256=b"t" * 32, instance=f"process {rank}",
        agreement="in_band", views=[view_to_wire(view) for view in views],
        newest_epoch=max([view.epoch for view in views], default=0),
    )  # fmt: skip


def report(started):
    calls = [pb.Call(offset_s=0.0, size_bytes=1000)]
    phases = pb.Phases(period_s=0.1, calls=calls, anchor_number=started, margin_s=0.01)
    return pb.RankMessage(report=pb.Report(started=started, phases=phases))


async def next_update(stream):
    while True:
        message = await asyncio.wait_for(stream.next(), 5)
        found = from_arbiter(message, "job", stream.rank)
        if isinstance(found, ViewUpdate):
            return found


async def updates(arbiter, views_of_ranks):
    """Register the ranks, and return the first update of each."""
    streams = [await arbiter.connect(registration(n, v)) for n, v in enumerate(views_of_ranks)]
    for stream in streams:
        await arbiter.receive(stream, report(20))
    return streams, [await next_update(stream) for stream in streams]


def use_all(agreements, number=20):
    """Run AllReduces until both ranks have adopted all; check that they use the same views."""
    members = [Member("job", rank, 2) for rank in range(2)]
    for _ in range(6):
        assert agreements[0].view == agreements[1].view
        smallest = min(one.newest_epoch for one in agreements)
        agreements = [
            one.complete(member, number, smallest)[0]
            for one, member in zip(agreements, members, strict=True)
        ]
        number += 1
    return agreements[0].view.epoch


OLD = [JobView(epoch, 0, GRANTED[:epoch]) for epoch in (7, 8, 9)]


@pytest.mark.parametrize("known", [(1, 1), (1, 2), (3, 1), (2, 3)])
@pytest.mark.parametrize("is_heard", list(itertools.product([True, False], repeat=2)))
def test_i7_after_a_lost_journal_ranks_with_other_views_agree(tmp_path, known, is_heard):
    async def scenario():
        views = [OLD[:count] for count in known]
        async with running(tmp_path / "new.db", MachineControl()) as arbiter:
            _, found = await updates(arbiter, views)
        ranks = [InBandAgreement(tuple(one)) for one in views]
        for rank, update in enumerate(found):
            if is_heard[rank]:
                member = Member("job", rank, 2)
                ranks[rank] = ranks[rank].receive(member, update, started=20, is_on_switch=False)[0]
        last = use_all(ranks)
        for rank, update in enumerate(found):  # repeated until adopted
            member = Member("job", rank, 2)
            ranks[rank] = ranks[rank].receive(member, update, started=20, is_on_switch=False)[0]
        newest_before = 6 + max(known)
        assert use_all(ranks) >= max(last, newest_before + 1)

    asyncio.run(scenario())


def test_i7_views_of_an_earlier_membership_survive_a_restart(tmp_path):
    async def scenario():
        control = MachineControl()
        async with running(tmp_path / "a.db", control) as arbiter:
            await updates(arbiter, [OLD, OLD[:1]])
        async with running(tmp_path / "a.db", control) as arbiter:
            # Only the rank that has missed 8 and 9 comes back at first.
            stream = await arbiter.connect(registration(1, OLD[:1]))
            await arbiter.receive(stream, report(20))
            found = await next_update(stream)
            assert [view.epoch for view in found.views][:3] == [7, 8, 9]

    asyncio.run(scenario())


def test_i7_a_switch_with_a_newer_controller_is_followed(tmp_path):
    async def scenario():
        control = MachineControl()
        control.state = replace(control.state, token=40, floors=(("other", 30),))
        async with running(tmp_path / "new.db", control) as arbiter:
            await updates(arbiter, [[], []])
            assert agreement.newest_epoch(arbiter.controller) > 30
            assert control.state.token > 40
            assert dict(control.state.floors)["job"] > 30
            assert any("journal" in notice for notice in arbiter.notices)

    asyncio.run(scenario())


def test_i7_a_job_whose_rank_is_gone_leaves_and_its_floor_with_it(tmp_path):
    async def scenario():
        control = MachineControl()
        async with running(tmp_path / "a.db", control) as arbiter:
            streams, _ = await updates(arbiter, [[], []])
            assert "job" in dict(control.state.floors)
            await arbiter.disconnect(streams[0], has_left=False)
            await async_wait_until(lambda: "job" not in dict(control.state.floors))
            assert not control.state.floors
            assert not arbiter.jobs.by_name["job"].is_member

    asyncio.run(scenario())


def test_i7_while_the_journal_cannot_be_written_nothing_is_sent(tmp_path, monkeypatch):
    async def scenario():
        control = MachineControl()
        async with running(tmp_path / "a.db", control) as arbiter:
            streams = [await arbiter.connect(registration(rank, [])) for rank in range(2)]

            def fail(self, text):
                raise JournalError("the disk is full")

            with monkeypatch.context() as patched:
                patched.setattr(Journal, "write", fail)
                for stream in streams:
                    await arbiter.receive(stream, report(20))
                await async_wait_until(
                    lambda: any("disk is full" in notice for notice in arbiter.notices)
                )
                assert await async_stays_true(lambda: not control.state.floors, 0.5)
            found = await next_update(streams[0])
            assert found.views[-1].decisions
            assert "job" in dict(control.state.floors)

    asyncio.run(scenario())


def test_i7_a_switch_that_could_not_be_reached_gets_the_floors_when_it_is_back(tmp_path):
    async def scenario():
        control = MachineControl()
        async with running(tmp_path / "a.db", control) as arbiter:
            control.is_reachable = False
            await async_wait_until(lambda: arbiter.switches.unreachable)
            streams, found = await updates(arbiter, [[], []])
            assert not any(reason & 1 for reason in found[0].views[-1].decisions)
            assert not control.state.floors
            control.is_reachable = True
            await async_wait_until(lambda: "job" in dict(control.state.floors))
            for _ in range(20):
                update = await next_update(streams[0])
                if any(reason & 1 for reason in update.views[-1].decisions):
                    return
            pytest.fail("the job gets no grant")

    asyncio.run(scenario())


def test_i7_a_clock_that_jumps_ahead_costs_a_job_the_switch_for_a_moment(tmp_path):
    jumped_s = 0.0

    def clock():
        return time.monotonic() + jumped_s

    async def scenario():
        nonlocal jumped_s
        control = MachineControl()
        async with running(tmp_path / "a.db", control, clock=clock) as arbiter:
            streams, _ = await updates(arbiter, [[], []])
            job = arbiter.jobs.by_name["job"]
            jumped_s = 86_400.0
            await async_wait_until(lambda: not job.is_member)  # no AllReduce for a day
            for number in (21, 22):
                for stream in streams:
                    await arbiter.receive(stream, report(number))
            await async_wait_until(lambda: job.is_member and "job" in dict(control.state.floors))
            assert not arbiter.problems

    asyncio.run(scenario())
