"""Requests that are being received: bounded in number, in time and in memory.

gRPC gives a message to Python when it is whole; until then a client that sends slowly, or not at
all, costs what it has sent. When too many messages are unfinished, or memory grows while they are,
the calls that have waited longest are ended: an honest message is whole within milliseconds.
Messages of unknown callers that arrive too fast for that are ended by halves, the oldest first.
Streams may be idle for any time. Whether one is idle or in the middle of a message is not known:
while memory grows, idle ones are ended too.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import islice
from typing import Any, Self

import grpc

from presage.errors import ExpiredError, OverloadedError
from presage.serving.admission.malloc import in_use_bytes

Read = Callable[[], Awaitable[Any]]

MOST_UNFINISHED = 2_000  # requests that are received at once; and as many streams
RECEIVE_S = 10.0  # from a call's metadata to the end of its message
GROWTH_BYTES = 32 * 1024 * 1024  # of memory while requests are received, before some are ended
_CALL_BYTES = 24 * 1024  # of an open call without a message, which is no reason to end it
_CHECK_S = 0.01  # between two checks of memory
_SLOW_S = 0.1  # a message that takes longer may be ended to free memory
_FREED_S = 1.0  # until the memory of requests that were ended has been freed
_FEW = 4  # requests of the largest size that memory always has room for


class Unfinished:
    """Requests of a server whose messages have not arrived whole.

    Parameters
    ----------
    freed : callable
        Called when a request ended unread, whose memory may be given back.
    memory : callable
        Returns the bytes that are allocated and not freed.
    """

    def __init__(
        self,
        freed: Callable[[], object] = lambda: None,
        *,
        most: int = MOST_UNFINISHED,
        receive_s: float = RECEIVE_S,
        growth_bytes: int = GROWTH_BYTES,
        memory: Callable[[], int] = in_use_bytes,
    ) -> None:
        self._freed, self._memory = freed, memory
        self._most, self._receive_s, self._growth_bytes = most, receive_s, growth_bytes
        # Calls with one request and streams of anyone, and calls of authenticated callers, each in
        # the order in which they began to wait.
        self._open: dict[asyncio.Timeout, float] = {}
        self._streams: dict[asyncio.Timeout, float] = {}
        self._known: dict[asyncio.Timeout, float] = {}
        self._ended: set[asyncio.Timeout] = set()
        self._before_bytes = 0  # the least since more than a few are being received
        self._ended_s = -_FREED_S  # when one was ended last
        self._checking: asyncio.TimerHandle | None = None
        self._check_at_s = 0.0

    def __len__(self) -> int:
        return len(self._open) + len(self._streams) + len(self._known)

    async def receive(self, read: Read, *, is_known: bool = False) -> Any:
        """Return a call's only message; None if its client sends none.

        Parameters
        ----------
        read : callable
            Of the call's gRPC context. An iterator of messages would keep the last one.
        is_known : bool
            Whether its caller was authenticated: such calls are ended for each other alone, or when
            memory is short although others were ended.

        Raises
        ------
        ExpiredError
            It did not arrive within ``receive_s``.
        OverloadedError
            The call was ended for others: too many are unfinished, or they take too much memory.
        """
        among = self._known if is_known else self._open
        message = await self._wait(read, among, self._receive_s)
        return None if message is grpc.aio.EOF else message

    async def _wait(
        self, read: Read, among: dict[asyncio.Timeout, float], within_s: float | None
    ) -> Any:
        loop = asyncio.get_running_loop()
        timeout, is_read = asyncio.timeout(within_s), False
        try:
            async with timeout:
                among[timeout] = loop.time()
                self._bound(loop)
                message = await read()
            is_read = True
        except TimeoutError:
            if timeout in self._ended:
                raise OverloadedError(
                    "the request was still arriving while too many others were, or while memory "
                    "was short; send it again later, or in smaller parts",
                    retry_after_s=1.0,
                ) from None
            raise ExpiredError(
                f"the request did not arrive whole within {self._receive_s:g} s; send it faster, "
                "or ask for less at once"
            ) from None
        else:
            return message
        finally:
            among.pop(timeout, None)
            self._ended.discard(timeout)
            if not is_read:
                self._freed()

    def _bound(self, loop: asyncio.AbstractEventLoop) -> None:
        for waiting in (self._open, self._streams, self._known):
            if len(waiting) > self._most:
                self._end(waiting, 1, loop)
        if len(self) > _FEW and self._checking is None:
            if loop.time() - self._ended_s >= _FREED_S:
                self._before_bytes = self._messages_bytes()
            self._check_again(loop)

    def _messages_bytes(self) -> int:
        """Return the memory in use, but for the open calls themselves."""
        return self._memory() - len(self) * _CALL_BYTES

    def _check(self, loop: asyncio.AbstractEventLoop) -> None:
        """End slow requests while memory has grown too much since only few were received."""
        self._checking = None
        if len(self) <= _FEW:
            return
        now_bytes = self._messages_bytes()
        self._before_bytes = min(self._before_bytes, now_bytes)
        grown_bytes = now_bytes - self._before_bytes
        if grown_bytes > self._growth_bytes:
            self._end_slow(loop)
            for waiting in (self._streams, self._open):
                self._end(waiting, min(len(waiting) // 2, len(waiting) - _FEW), loop)
        self._check_again(loop)

    def _check_again(self, loop: asyncio.AbstractEventLoop) -> None:
        self._check_at_s = loop.time() + _CHECK_S
        self._checking = loop.call_at(self._check_at_s, self._check, loop)

    def _end_slow(self, loop: asyncio.AbstractEventLoop) -> None:
        """End all slow requests but a few; authenticated ones only where there are no others.

        The time by which the event loop is late is its own.
        """
        late_s = max(0.0, loop.time() - self._check_at_s)
        until_s, left, ended = loop.time() - _SLOW_S - late_s, _FEW, 0
        for waiting in (self._streams, self._open, self._known):
            if ended and waiting is self._known:
                return  # that may have been enough
            slow = sum(1 for since_s in waiting.values() if since_s < until_s)
            excess = max(slow - left, 0)
            self._end(waiting, excess, loop)
            ended, left = ended + excess, max(left - slow, 0)

    def _end(
        self, waiting: dict[asyncio.Timeout, float], count: int, loop: asyncio.AbstractEventLoop
    ) -> None:
        """End the calls that have waited longest."""
        for timeout in tuple(islice(waiting, max(count, 0))):
            del waiting[timeout]
            self._ended.add(timeout)
            self._ended_s = loop.time()
            timeout.reschedule(loop.time())

    def messages(self, read: Read) -> AsyncIterator[Any]:
        """Return a stream's messages, whose next one may come at any time.

        Iterating raises OverloadedError where the stream was ended because too many are open, or
        to free memory.
        """
        return _Messages(lambda: self._wait(read, self._streams, None))


class _Messages:
    """Not a generator, which would be left to the garbage collector where its call is cancelled."""

    def __init__(self, wait: Read) -> None:
        self._wait = wait

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        message = await self._wait()
        if message is grpc.aio.EOF:
            raise StopAsyncIteration
        return message
