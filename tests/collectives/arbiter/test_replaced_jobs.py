"""Jobs whose name, nodes or switches change, and streams that break while they are opened."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time

import pytest

from presage.collectives.arbiter import jobs as job_rules
from presage.collectives.arbiter.arbiter import Arbiter
from presage.collectives.arbiter.domain import Domain, SwitchSpec
from presage.collectives.arbiter.journal import Journal
from presage.collectives.arbiter.switches import SwitchSet
from presage.collectives.core.arbitration import decision_tables
from presage.collectives.core.in_band import InBandAgreement
from presage.collectives.core.messages import Adopted, Member
from presage.collectives.core.view import JobView
from presage.errors import InvalidRequestError, JournalError, OverloadedError
from tests.collectives.arbiter.test_membership import (
    GRANTED,
    OPTIONS,
    MachineControl,
    next_update,
    registration,
    report,
    running,
    updates,
)
from tests.support.waiting import async_stays_true, async_wait_until


def registered(rank, *, name="job", token=b"t", node="", views=()):
    message = registration(rank, views)
    message.job, message.job_token_sha256, message.node = name, token * 32, node
    message.instance += token.decode()
    return message


@contextlib.asynccontextmanager
async def running_domain(path, switches_of, name="tor"):
    """Run an arbiter of a switch; yield it and its task."""
    journal = Journal(path)
    domain = Domain((SwitchSpec(name, "h", 1),), switches_of)
    arbiter = Arbiter(SwitchSet(domain, {name: MachineControl()}), journal, OPTIONS)
    await arbiter.start()
    task = asyncio.create_task(arbiter.run())
    try:
        yield arbiter, task
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        journal.close()


def test_i1_ranks_get_no_views_of_an_ended_job_with_their_name(tmp_path):
    async def scenario():
        async with running(tmp_path / "a.db", MachineControl()) as arbiter:
            streams, _ = await updates(arbiter, [[], []])
            for stream in streams:
                await arbiter.disconnect(stream, has_left=True)
            first = await arbiter.connect(registered(0, token=b"u"))
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(next_update(first), 0.6)
            second = await arbiter.connect(registered(1, token=b"u"))
            for stream in (first, second):
                await arbiter.receive(stream, report(3))
            found = [await next_update(stream) for stream in (first, second)]
            assert found[0].views == found[1].views

    asyncio.run(scenario())


def test_i1_a_later_view_is_not_used_in_the_place_of_a_missing_one():
    rank = InBandAgreement((JobView(0), JobView(9, 0, GRANTED)))
    member = Member("job", 0, 2)

    agreed, messages = rank.complete(member, 3, 7)

    assert agreed.view.epoch == 7
    assert not any(agreed.view.is_allowed(number) for number in range(60))
    assert messages == (Adopted("job", 0, 7),)
    assert agreed.complete(member, 4, 9)[0].view == JobView(9, 0, GRANTED)


def test_a_member_whose_new_nodes_no_switch_connects_leaves(tmp_path):
    async def scenario():
        def switches_of(nodes):
            return ("tor",) if set(nodes) <= {"a", "b"} else ()

        async with running_domain(tmp_path / "a.db", switches_of) as (arbiter, task):
            streams = [await arbiter.connect(registered(n, node="ab"[n])) for n in range(2)]
            for stream in streams:
                await arbiter.receive(stream, report(20))
            await next_update(streams[0])
            assert arbiter.jobs.by_name["job"].is_member

            await arbiter.connect(registered(1, node="elsewhere"))
            job = arbiter.jobs.by_name["job"]
            await async_wait_until(lambda: not job.is_member)
            assert await async_stays_true(lambda: not job.is_member and not task.done(), 0.3)
            assert job.switches == ()
            assert job.views  # its ranks may still have them

            back = await arbiter.connect(registered(1, node="b"))
            await arbiter.receive(back, report(21))
            await arbiter.receive(streams[0], report(21))
            await next_update(back)
            assert job.is_member

    asyncio.run(scenario())


@pytest.mark.parametrize("name", ["tor", "renamed"])
def test_a_journal_of_other_switches_or_nodes_does_not_stop_the_arbiter(tmp_path, name):
    async def scenario():
        path = tmp_path / "a.db"
        async with running_domain(path, lambda _: ("tor",)) as (arbiter, _):
            await updates(arbiter, [[], []])
        found = () if name == "tor" else (name,)
        async with running_domain(path, lambda _: found, name) as (arbiter, task):
            streams = [await arbiter.connect(registration(rank, [])) for rank in range(2)]
            for stream in streams:
                await arbiter.receive(stream, report(30))
            if found:
                await next_update(streams[0])
            job = arbiter.jobs.by_name["job"]
            await async_wait_until(lambda: job.is_member == bool(found))
            assert await async_stays_true(
                lambda: job.is_member == bool(found) and not task.done(), 0.3
            )

    asyncio.run(scenario())


def test_decisions_of_a_job_whose_switches_change_meanwhile_are_dropped(tmp_path, monkeypatch):
    async def scenario():
        async with running_domain(tmp_path / "a.db", lambda _: ("tor",)) as (arbiter, task):
            task.cancel()  # only this test plans
            streams = [await arbiter.connect(registration(rank, [])) for rank in range(2)]
            for stream in streams:
                await arbiter.receive(stream, report(20))
            job = arbiter.jobs.by_name["job"]

            def decide(view):
                job.switches = ()
                return decision_tables(view)

            monkeypatch.setattr(
                "presage.collectives.arbiter.runtime.view_planning.decision_tables", decide
            )
            await arbiter.planning.plan(time.monotonic())
            assert (job.is_member, arbiter.changes) == (False, 0)

    asyncio.run(scenario())


def test_a_job_that_cannot_be_planned_is_a_notice(tmp_path):
    async def scenario():
        async with running(tmp_path / "a.db", MachineControl()) as arbiter:
            await updates(arbiter, [[], []])
            arbiter.jobs.by_name["job"].switches = ()
            arbiter.planned_s = -1e9
            await arbiter.planning.plan(time.monotonic())
            assert any("'job' cannot be planned" in notice for notice in arbiter.notices)
            assert not arbiter.jobs.by_name["job"].is_member

    asyncio.run(scenario())


@pytest.mark.parametrize("is_cancelled", [True, False])
def test_a_stream_that_breaks_while_its_job_is_saved_is_not_connected(
    tmp_path, monkeypatch, is_cancelled
):
    async def scenario():
        async with running(tmp_path / "a.db", MachineControl()) as arbiter:
            write, is_writing, can_end = Journal.write, threading.Event(), threading.Event()

            def slow(journal, text):
                is_writing.set()
                can_end.wait(60)
                if not is_cancelled:
                    raise JournalError("the disk is full")
                write(journal, text)

            with monkeypatch.context() as patched:
                patched.setattr(Journal, "write", slow)
                connecting = asyncio.create_task(arbiter.connect(registration(0, [])))
                await async_wait_until(is_writing.is_set)
                if is_cancelled:
                    connecting.cancel()
                    await asyncio.sleep(0)  # the task is cancelled while the write goes on
                can_end.set()
                with pytest.raises((asyncio.CancelledError, JournalError)):
                    await connecting
            assert arbiter.jobs.by_name["job"].connected == 0
            assert arbiter.open_streams == 0
            await async_wait_until(lambda: "job" not in arbiter.jobs.by_name)
            await arbiter.connect(registered(0, token=b"u"))

    asyncio.run(scenario())


def test_views_of_all_jobs_are_bounded_before_a_job_is_registered(tmp_path):
    async def scenario():
        def views(size):
            return [JobView(epoch, 0, b"\1" * 65_536) for epoch in range(1, 1 + size // 65_536)]

        async with running(tmp_path / "a.db", MachineControl()) as arbiter:
            with pytest.raises(InvalidRequestError, match="too many views"):
                await arbiter.connect(registered(0, views=views(2 << 20)))
            assert not arbiter.jobs.by_name
            with pytest.raises(OverloadedError, match="too many views"):
                for number in range(6):
                    name = f"job-{number}"
                    await arbiter.connect(registered(0, name=name, views=views(960 << 10)))
            assert name not in arbiter.jobs.by_name
            kept = [v for j in arbiter.jobs.by_name.values() for v in j.views.values()]
            total = sum(len(view.decisions) for view in kept)
            assert 3 << 20 < total <= job_rules.MAX_VIEW_BYTES
            await arbiter.connect(registered(0, name="small"))

    asyncio.run(scenario())
