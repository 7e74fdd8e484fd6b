"""Slow requests are ended in time, the oldest first when there are too many."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import grpc
import pytest

from presage.errors import ExpiredError, OverloadedError
from presage.serving.admission.unfinished_requests import SLOW_S, UnfinishedRequests
from tests.support.waiting import async_stays_true, async_wait_until

CALL_BYTES = 24 * 1024  # what a call takes without a message is no reason to end it


async def ended(waiting: Sequence[asyncio.Future[object]], count: int) -> list[bool]:
    """Wait until so many requests have ended, and none does in the next checks; return which."""
    await async_wait_until(lambda: sum(one.done() for one in waiting) >= count)
    assert await async_stays_true(lambda: sum(one.done() for one in waiting) == count, 0.05)
    return [one.done() for one in waiting]


async def never() -> bytes:
    await asyncio.Event().wait()
    return b""


async def at_once() -> bytes:
    return b"whole"


def test_a_whole_request_is_returned_and_not_counted():
    async def main():
        unfinished = UnfinishedRequests()
        assert await unfinished.receive(at_once) == b"whole"
        assert len(unfinished) == 0

    asyncio.run(main())


def test_a_request_that_does_not_arrive_is_ended_in_time():
    freed = []

    async def main():
        unfinished = UnfinishedRequests(lambda: freed.append(1), receive_s=0.01)
        with pytest.raises(ExpiredError, match=r"did not arrive completely within 0\.01 s"):
            await unfinished.receive(never)
        assert len(unfinished) == 0

    asyncio.run(main())
    assert freed


def test_the_oldest_is_ended_where_too_many_are_unfinished():
    async def main():
        unfinished = UnfinishedRequests(max_unfinished=3)
        waiting = [asyncio.create_task(unfinished.receive(never)) for _ in range(5)]
        assert await ended(waiting, 2) == [True, True, False, False, False]
        for one in waiting[:2]:
            with pytest.raises(OverloadedError, match="ended before it had arrived"):
                await one
        for one in waiting[2:]:
            one.cancel()

    asyncio.run(main())


def test_slow_requests_are_ended_while_memory_is_short():
    async def main():
        memory = [0]
        unfinished = UnfinishedRequests(
            growth_bytes=10, memory=lambda: memory[0] + CALL_BYTES * len(unfinished)
        )
        waiting = [asyncio.create_task(unfinished.receive(never)) for _ in range(9)]
        assert await async_stays_true(lambda: not any(one.done() for one in waiting), 0.2)
        memory[0] = 11
        assert await ended(waiting, 5) == [True] * 5 + [False] * 4
        for one in waiting:
            one.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    asyncio.run(main())


def test_unauthenticated_requests_do_not_end_an_authenticated_one():
    async def main():
        memory = [0]
        unfinished = UnfinishedRequests(
            max_unfinished=9,
            growth_bytes=10,
            memory=lambda: memory[0] + CALL_BYTES * len(unfinished),
        )
        known = [
            asyncio.create_task(unfinished.receive(never, is_authenticated=True)) for _ in range(2)
        ]
        await async_wait_until(lambda: len(unfinished) == 2)
        others = [asyncio.create_task(unfinished.receive(never)) for _ in range(20)]
        assert await ended([*known, *others], 11) == [False] * 2 + [True] * 11 + [False] * 9
        await asyncio.sleep(2 * SLOW_S)
        memory[0] = 11
        await asyncio.wait([others[15]], timeout=60)
        memory[0] = 0
        assert await async_stays_true(lambda: not any(one.done() for one in known), 0.1)
        memory[0] = 11  # still, although the others were ended: theirs
        await async_wait_until(lambda: all(one.done() for one in known))
        for one in (*known, *others):
            one.cancel()
        await asyncio.gather(*known, *others, return_exceptions=True)

    asyncio.run(main())


def test_a_stream_may_be_idle_for_any_time_and_ends_with_its_messages():
    async def main():
        unfinished = UnfinishedRequests(receive_s=0.01)
        coming: asyncio.Queue[object] = asyncio.Queue()
        messages = unfinished.messages(coming.get)
        idle = asyncio.ensure_future(anext(messages))
        assert await async_stays_true(lambda: not idle.done(), 0.1)
        for message in (b"a", b"b", grpc.aio.EOF):
            coming.put_nowait(message)
        assert await idle == b"a"
        assert [message async for message in messages] == [b"b"]
        assert len(unfinished) == 0

    asyncio.run(main())


def test_idle_streams_are_ended_while_memory_is_short_and_before_requests():
    async def main():
        memory = [0]
        unfinished = UnfinishedRequests(
            growth_bytes=10, memory=lambda: memory[0] + CALL_BYTES * len(unfinished)
        )
        calls = [asyncio.create_task(unfinished.receive(never)) for _ in range(2)]
        streams = [asyncio.ensure_future(anext(unfinished.messages(never))) for _ in range(9)]
        await asyncio.sleep(2 * SLOW_S)
        memory[0] = 11
        assert await ended([*streams, *calls], 7) == [True] * 5 + [False] * 4 + [True, True]
        with pytest.raises(OverloadedError, match="ended before it had arrived"):
            await streams[0]
        for one in (*calls, *streams):
            one.cancel()
        await asyncio.gather(*calls, *streams, return_exceptions=True)

    asyncio.run(main())


def test_the_oldest_idle_stream_is_ended_where_too_many_are_open():
    async def main():
        unfinished = UnfinishedRequests(max_unfinished=3)
        streams = [asyncio.ensure_future(anext(unfinished.messages(never))) for _ in range(4)]
        calls = [asyncio.create_task(unfinished.receive(never)) for _ in range(3)]
        assert await ended([*streams, *calls], 1) == [True] + [False] * 6
        for one in (*calls, *streams):
            one.cancel()
        await asyncio.gather(*calls, *streams, return_exceptions=True)

    asyncio.run(main())


def test_a_call_that_its_client_cancels_is_not_mistaken_for_a_slow_one():
    async def main():
        unfinished = UnfinishedRequests()
        task = asyncio.create_task(unfinished.receive(never))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert len(unfinished) == 0

    asyncio.run(main())


async def open_requests(waiting: list[asyncio.Task[object]]) -> list[bool]:
    """Return whether each request is still open, and cancel all."""
    found = [not one.done() for one in waiting]
    for one in waiting:
        one.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    return found


def test_requests_that_arrive_too_fast_are_ended_by_halves_the_oldest_first(monkeypatch):
    monkeypatch.setattr(
        "presage.serving.admission.unfinished_requests.SLOW_S", 1000.0
    )  # all are fresh

    async def main():
        memory = [0]
        unfinished = UnfinishedRequests(
            growth_bytes=10, memory=lambda: memory[0] + CALL_BYTES * len(unfinished)
        )

        async def receive() -> object:
            try:
                return await unfinished.receive(never)
            finally:
                memory[0] = 0  # what they took is freed

        waiting = [asyncio.create_task(receive()) for _ in range(40)]
        await asyncio.sleep(0)
        memory[0] = 11
        await ended(waiting, 20)
        return await open_requests(waiting)

    assert asyncio.run(main()) == [False] * 20 + [True] * 20


def test_new_requests_of_authenticated_clients_are_not_ended_for_memory(monkeypatch):
    monkeypatch.setattr(
        "presage.serving.admission.unfinished_requests.SLOW_S", 1000.0
    )  # all are fresh

    async def main():
        memory = [0]
        unfinished = UnfinishedRequests(
            growth_bytes=10, memory=lambda: memory[0] + CALL_BYTES * len(unfinished)
        )
        waiting = [
            asyncio.create_task(unfinished.receive(never, is_authenticated=position < 20))
            for position in range(40)
        ]
        await asyncio.sleep(0)
        memory[0] = 11
        await asyncio.wait([waiting[-5]], timeout=60)  # all that may be ended
        return await open_requests(waiting)

    assert asyncio.run(main()) == [True] * 20 + [False] * 16 + [True] * 4


def test_memory_of_requests_that_were_just_ended_does_not_raise_the_bound():
    async def main():
        memory = [0]
        unfinished = UnfinishedRequests(
            growth_bytes=10, memory=lambda: memory[0] + CALL_BYTES * len(unfinished)
        )

        async def flood() -> list[asyncio.Task[object]]:
            waiting = [asyncio.create_task(unfinished.receive(never)) for _ in range(9)]
            await asyncio.sleep(2 * SLOW_S)
            memory[0] = 11  # and it is not freed yet when the next ones come
            return waiting

        waiting = await flood()
        await ended(waiting, 5)
        waiting += await flood()
        await ended(waiting, 14)
        return await open_requests(waiting)

    assert asyncio.run(main()) == [False] * 14 + [True] * 4


def test_memory_of_a_disconnected_client_is_released():
    freed = []

    async def main():
        unfinished = UnfinishedRequests(lambda: freed.append(1))
        task = asyncio.create_task(unfinished.receive(never))
        await async_wait_until(lambda: len(unfinished) == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert freed
