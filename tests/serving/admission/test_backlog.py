"""Limit on waiting calls by gRPC's own count, and the retry delay of rejected calls."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from presage.errors import OverloadedError
from presage.serving.admission.backlog import Backlog, server_ids
from presage.serving.admission.open_calls import OpenCalls
from tests.support.waiting import async_wait_until


class Waiting:
    """Calls of a server that stay open until they are released; at most 3 may wait.

    They count as not yet handed over to Python unless ``open_calls`` registers them.
    """

    def __init__(self, *, sees: bool = False) -> None:
        before = server_ids()
        self.server = grpc.aio.server()
        self.open_calls = OpenCalls()
        self.backlog = Backlog(before, self.open_calls, 3)
        if sees:
            self.server.add_generic_rpc_handlers((self.open_calls,))
        self._let_go = asyncio.Event()
        self._calls: list[Any] = []
        handlers: dict[str, Any] = {"Hold": grpc.unary_unary_rpc_method_handler(self._hold)}
        self.server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("test.Service", handlers),)
        )

    async def _hold(self, request: bytes, _context: object) -> bytes:
        await self._let_go.wait()
        return request

    async def more(self, channel: grpc.aio.Channel, calls: int) -> None:
        hold: Any = channel.unary_unary("/test.Service/Hold")
        self._calls += [hold(b"") for _ in range(calls)]
        await self._until(len(self._calls))

    async def end(self) -> None:
        self._let_go.set()
        await asyncio.gather(*self._calls)
        self._let_go, self._calls = asyncio.Event(), []
        await self._until(0)

    async def cancel(self) -> None:
        """Cancel all calls at the client."""
        for call in self._calls:
            call.cancel()
        self._calls.clear()
        await self._until(0)

    async def _until(self, calls: int) -> None:
        await async_wait_until(
            lambda: self.backlog.count_calls()[1] == calls, what=self.backlog.count_calls
        )


@asynccontextmanager
async def waiting(*, sees: bool = False):
    held = Waiting(sees=sees)
    port = held.server.add_insecure_port("127.0.0.1:0")
    await held.server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield held, lambda calls: held.more(channel, calls)
    finally:
        await held.server.stop(0)


def retry_after_s(backlog: Backlog, now_s: float) -> float:
    """Return the retry delay of a call that arrives now and is rejected."""
    with pytest.raises(OverloadedError, match=r"\d calls are waiting and the limit is 3") as caught:
        backlog.check(now_s)
    assert caught.value.retry_after_s is not None
    return caught.value.retry_after_s


def test_calls_are_refused_while_too_many_wait():
    async def main():
        async with waiting() as (held, more):
            # Seconds apart: after a read that took long, the next one is due much later.
            await more(3)
            held.backlog.check(1000.0)
            await more(2)
            for _ in range(2):  # each of which is one less that waits
                assert retry_after_s(held.backlog, 1010.0) > 0
            held.backlog.check(1010.0)
            assert held.backlog.count_calls() == (5, 5)
            await held.end()
            held.backlog.check(1020.0)
            assert held.backlog.count_calls() == (5, 0)

    asyncio.run(main())


def test_backlog_counts_the_calls_of_its_server():
    async def main():
        async with waiting() as (first, of_first), waiting() as (second, of_second):
            await of_first(5)
            await of_second(2)
            assert (first.backlog.count_calls(), second.backlog.count_calls()) == ((5, 5), (2, 2))
            retry_after_s(first.backlog, 1000.0)
            second.backlog.check(1000.0)

    asyncio.run(main())


@pytest.mark.parametrize("count", [1, 250])  # gRPC tells of a hundred at a time
def test_backlog_counts_only_its_own_server_among_several(count):
    async def main():
        others = [grpc.aio.server() for _ in range(count)]
        async with waiting() as (held, more):
            await more(5)
            assert held.backlog.count_calls() == (5, 5)
        del others

    asyncio.run(main())


def test_retry_delay_is_estimated_from_uninterrupted_work(monkeypatch):
    # A slow poll, as on a machine under load, would delay the next.
    monkeypatch.setattr("presage.serving.admission.backlog.time.thread_time", lambda: 0.0)

    async def main():
        async with waiting() as (held, more):
            await more(2)
            held.backlog.check(1000.0)
            await held.end()
            await more(5)
            # Two calls were answered in 50 ms, and five wait.
            assert retry_after_s(held.backlog, 1000.05) == pytest.approx(5 * 0.025)

    asyncio.run(main())


def test_idle_time_does_not_count_as_response_time():
    async def main():
        async with waiting() as (held, more):
            await more(2)
            held.backlog.check(1000.0)
            await held.end()
            await more(1)
            await held.end()
            await more(5)  # all at once, an hour later
            assert retry_after_s(held.backlog, 4600.0) == pytest.approx(5 * 0.001)

    asyncio.run(main())


async def open_calls_are(held: Waiting, count: int) -> None:
    await async_wait_until(
        lambda: held.open_calls.count == count, what=lambda: held.open_calls.count
    )


def test_calls_handed_over_to_python_do_not_count_as_waiting():
    async def main():
        async with waiting(sees=True) as (held, more):
            await more(5)
            await open_calls_are(held, 5)  # they were handed over
            held.backlog.check(1000.0)
            await held.end()
            await open_calls_are(held, 0)

    asyncio.run(main())


def test_cancelled_waiting_calls_are_removed_from_the_count():
    """A client that opens and cancels calls faster than they are handed over leaves none behind."""

    async def main():
        async with waiting(sees=True) as (held, more):
            await more(4)
            await held.cancel()
            await open_calls_are(held, 0)
            held.backlog.check(1000.0)

    asyncio.run(main())
