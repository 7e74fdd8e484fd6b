"""Work queue: small requests run at once, large ones in threads, none past its deadline."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import contextmanager
from typing import Any

import pytest

from presage.errors import ExpiredError, OverloadedError
from presage.serving.authentication.callers import Caller
from presage.serving.server.call import Call
from presage.serving.server.prometheus_metrics import Metrics
from presage.serving.server.work_queue import INLINE_BYTES, INLINE_ROWS, THREADS, WorkQueue
from tests.support.waiting import async_stays_true, async_wait_until

LARGE = INLINE_ROWS + 1


def call(*, left_s: float = 60.0) -> Call:
    return Call("Predict", "r", Caller("ann", frozenset()), deadline_s=time.monotonic() + left_s)


@contextmanager
def working(**options):
    metrics = Metrics()
    work = WorkQueue(metrics, **options)
    try:
        yield work, lambda: metrics.registry.get_sample_value("presage_queue_rows")
    finally:
        work.close()


class Blocked:
    """Work that sets ``begun`` when it begins, and ends when it is released."""

    def __init__(self) -> None:
        self.begun, self.let_go = threading.Event(), threading.Event()

    def __call__(self) -> bytes:
        self.begun.set()
        assert self.let_go.wait(10)
        return b"done"


class Counted:
    """Work that counts how often it ran."""

    times = 0

    def __call__(self) -> bytes:
        self.times += 1
        return b"done"


def thread_name() -> bytes:
    return threading.current_thread().name.encode()


def test_a_small_request_runs_at_once():
    with working() as (work, _):
        assert work.run(INLINE_ROWS, INLINE_BYTES, call(), thread_name) == thread_name()


@pytest.mark.parametrize(("rows", "size"), [(LARGE, 1), (1, INLINE_BYTES + 1)])
def test_a_large_request_runs_in_a_thread(rows, size):
    async def main():
        with working() as (work, _):
            answer = await work.run(rows, size, call(), thread_name)
            assert answer.startswith(b"presage-batch")

    asyncio.run(main())


def test_small_requests_do_not_wait_for_large_ones():
    async def main():
        with working() as (work, rows):
            blocked = Blocked()
            large = asyncio.ensure_future(work.run(LARGE, 1, call(), blocked))
            await asyncio.to_thread(blocked.begun.wait, 10)
            assert work.run(1, 1, call(), lambda: b"small") == b"small"
            assert rows() == LARGE
            blocked.let_go.set()
            assert await large == b"done"
            assert rows() == 0

    asyncio.run(main())


def test_as_many_large_requests_run_at_once_as_there_are_threads():
    async def main():
        with working() as (work, rows):
            blocked = [Blocked() for _ in range(THREADS + 1)]
            tasks = [asyncio.ensure_future(work.run(LARGE, 1, call(), b)) for b in blocked]
            for one in blocked[:THREADS]:
                assert await asyncio.to_thread(one.begun.wait, 10)
            assert rows() == LARGE * (THREADS + 1)
            assert not blocked[THREADS].begun.is_set()
            blocked[0].let_go.set()
            assert await asyncio.to_thread(blocked[THREADS].begun.wait, 10)
            for one in blocked:
                one.let_go.set()
            assert await asyncio.gather(*tasks) == [b"done"] * (THREADS + 1)
            assert rows() == 0

    asyncio.run(main())


@pytest.mark.parametrize("rows", [1, LARGE])
def test_work_without_a_waiting_client_is_not_begun(rows):
    never = Counted()

    async def main():
        with working() as (work, waiting):
            late = call(left_s=-0.001)
            with pytest.raises(ExpiredError):
                answer = work.run(rows, 1, late, never)
                await answer
            assert not waiting()

    asyncio.run(main())
    assert never.times == 0


def test_a_deadline_that_passes_in_the_queue_is_detected():
    never = Counted()

    async def main():
        with working() as (work, rows):
            blocked = [Blocked() for _ in range(THREADS)]
            tasks = [asyncio.ensure_future(work.run(LARGE, 1, call(), b)) for b in blocked]
            hurried = call(left_s=0.05)
            late = asyncio.ensure_future(work.run(LARGE, 1, hurried, never))
            await async_wait_until(lambda: time.monotonic() > hurried.deadline_s)
            for one in blocked:
                one.let_go.set()
            with pytest.raises(ExpiredError):
                await late
            await asyncio.gather(*tasks)
            assert rows() == 0

    asyncio.run(main())
    assert never.times == 0


def test_work_beyond_the_queue_limit_is_rejected_and_not_run():
    never = Counted()

    async def main():
        with working(max_queued_rows=2 * LARGE) as (work, rows):
            blocked = [Blocked() for _ in range(2)]
            tasks = [asyncio.ensure_future(work.run(LARGE, 1, call(), b)) for b in blocked]
            await asyncio.to_thread(blocked[1].begun.wait, 10)
            with pytest.raises(OverloadedError) as caught:
                await work.run(LARGE, 1, call(), never)
            assert caught.value.retry_after_s
            assert work.run(1, 1, call(), lambda: b"small") == b"small"  # takes no room
            for one in blocked:
                one.let_go.set()
            await asyncio.gather(*tasks)
            assert await work.run(2 * LARGE, 1, call(), lambda: b"room again") == b"room again"
            assert rows() == 0

    asyncio.run(main())
    assert never.times == 0


def test_a_cancelled_request_leaves_the_queue_and_is_not_run():
    never = Counted()

    async def main():
        with working(max_queued_rows=3 * LARGE) as (work, rows):
            blocked = [Blocked() for _ in range(THREADS)]
            tasks = [asyncio.ensure_future(work.run(LARGE, 1, call(), b)) for b in blocked]
            given_up = asyncio.ensure_future(work.run(LARGE, 1, call(), never))
            await asyncio.to_thread(blocked[-1].begun.wait, 10)
            given_up.cancel()
            with pytest.raises(asyncio.CancelledError):
                await given_up
            assert rows() == THREADS * LARGE
            in_its_place = asyncio.ensure_future(work.run(LARGE, 1, call(), lambda: b"room"))
            for one in blocked:
                one.let_go.set()
            assert await in_its_place == b"room"
            await asyncio.gather(*tasks)

    asyncio.run(main())
    assert never.times == 0


def test_an_error_of_the_work_is_raised_and_frees_its_slot():
    def refused() -> bytes:
        raise ZeroDivisionError

    async def main():
        with working(max_queued_rows=LARGE) as (work, rows):
            for _ in range(3):
                with pytest.raises(ZeroDivisionError):
                    await work.run(LARGE, 1, call(), refused)
            with pytest.raises(ZeroDivisionError):
                work.run(1, 1, call(), refused)
            assert rows() == 0

    asyncio.run(main())


def test_closing_waits_for_running_work():
    async def main():
        blocked, work = Blocked(), WorkQueue(Metrics())
        answer: Any = work.run(LARGE, 1, call(), blocked)
        task = asyncio.ensure_future(answer)
        await asyncio.to_thread(blocked.begun.wait, 10)
        closing = asyncio.ensure_future(asyncio.to_thread(work.close))
        assert await async_stays_true(lambda: not closing.done(), 0.05)
        blocked.let_go.set()
        await closing
        assert await task == b"done"

    asyncio.run(main())
