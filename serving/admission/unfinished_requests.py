"""Limits on requests that are being received: their number, their time and their memory.

gRPC passes a message to Python when it is complete. Until then a slow or silent client occupies the
memory of the bytes that it has sent. When too many messages are incomplete, or memory grows
meanwhile, the calls that have waited longest are ended: a regular message arrives within
milliseconds. When messages of unauthenticated callers arrive too fast for that, half of them are
ended at a time, oldest first. Streams may be idle for any time. The server cannot distinguish an
idle stream from one in the middle of a message, so idle streams are ended too while memory grows.
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

MAX_UNFINISHED = 2_000  # concurrent incomplete requests, and as many streams
RECEIVE_S = 10.0  # from a call's metadata to the end of its message
GROWTH_BYTES = 32 * 1024 * 1024  # memory growth above which incomplete requests are ended
_CALL_BYTES = 24 * 1024  # memory of an open call without a message, not counted as growth
_CHECK_S = 0.01  # between two memory checks
SLOW_S = 0.1  # a message that takes longer may be ended to free memory
_RELEASE_S = 1.0  # until the memory of ended requests has been freed
_ALWAYS_ALLOWED = 4  # requests of the largest size that are never ended for memory


class UnfinishedRequests:
    """Requests of a server whose messages have not arrived completely.

    Parameters
    ----------
    on_unread : callable
        Called when a request ended before it was received; its memory can be returned.
    max_unfinished : int
        Limit on incomplete requests, on streams, and on incomplete requests of authenticated
        callers, separately.
    receive_s : float
        Time limit for one message.
    growth_bytes : int
        Memory growth above which slow requests are ended.
    memory : callable
        Returns the allocated bytes of the process.
    """

    def __init__(
        self,
        on_unread: Callable[[], object] = lambda: None,
        *,
        max_unfinished: int = MAX_UNFINISHED,
        receive_s: float = RECEIVE_S,
        growth_bytes: int = GROWTH_BYTES,
        memory: Callable[[], int] = in_use_bytes,
    ) -> None:
        self._on_unread, self._memory = on_unread, memory
        self._max_unfinished, self._receive_s = max_unfinished, receive_s
        self._growth_bytes = growth_bytes
        # Unary calls and streams of unauthenticated callers, and unary calls of authenticated
        # callers, each in the order in which they began to wait.
        self._open: dict[asyncio.Timeout, float] = {}
        self._streams: dict[asyncio.Timeout, float] = {}
        self._authenticated_calls: dict[asyncio.Timeout, float] = {}
        self._ended: set[asyncio.Timeout] = set()
        self._before_bytes = 0  # minimum while more than _ALWAYS_ALLOWED are being received
        self._ended_s = -_RELEASE_S  # time of the last ended request
        self._checking: asyncio.TimerHandle | None = None
        self._check_at_s = 0.0

    def __len__(self) -> int:
        return len(self._open) + len(self._streams) + len(self._authenticated_calls)

    async def receive(self, read: Read, *, is_authenticated: bool = False) -> Any:
        """Return the only message of a call; None if its client sends none.

        Parameters
        ----------
        read : callable
            ``read`` of the call's gRPC context. An iterator of messages would keep the last one
            alive.
        is_authenticated : bool
            Whether the caller was authenticated. Such calls are ended only in favour of each other,
            or when ending all others has not freed enough memory.

        Raises
        ------
        ExpiredError
            The message did not arrive within ``receive_s``.
        OverloadedError
            The call was ended because too many requests are incomplete or take too much memory.
        """
        waiting = self._authenticated_calls if is_authenticated else self._open
        message = await self._wait(read, waiting, self._receive_s)
        return None if message is grpc.aio.EOF else message

    async def _wait(
        self, read: Read, waiting: dict[asyncio.Timeout, float], within_s: float | None
    ) -> Any:
        loop = asyncio.get_running_loop()
        timeout, is_read = asyncio.timeout(within_s), False
        try:
            async with timeout:
                waiting[timeout] = loop.time()
                self._bound(loop)
                message = await read()
            is_read = True
        except TimeoutError:
            if timeout in self._ended:
                raise OverloadedError(
                    "the request was ended before it had arrived completely: too many others are "
                    "arriving, or memory is low; send it again later, or in smaller parts",
                    retry_after_s=1.0,
                ) from None
            raise ExpiredError(
                f"the request did not arrive completely within {self._receive_s:g} s; send it "
                "faster, or send a smaller one"
            ) from None
        else:
            return message
        finally:
            waiting.pop(timeout, None)
            self._ended.discard(timeout)
            if not is_read:
                self._on_unread()

    def _bound(self, loop: asyncio.AbstractEventLoop) -> None:
        for waiting in (self._open, self._streams, self._authenticated_calls):
            if len(waiting) > self._max_unfinished:
                self._end(waiting, 1, loop)
        if len(self) > _ALWAYS_ALLOWED and self._checking is None:
            if loop.time() - self._ended_s >= _RELEASE_S:
                self._before_bytes = self._messages_bytes()
            self._check_again(loop)

    def _messages_bytes(self) -> int:
        """Return the memory in use without that of the open calls themselves."""
        return self._memory() - len(self) * _CALL_BYTES

    def _check(self, loop: asyncio.AbstractEventLoop) -> None:
        """End slow requests while memory has grown by more than the limit."""
        self._checking = None
        if len(self) <= _ALWAYS_ALLOWED:
            return
        now_bytes = self._messages_bytes()
        self._before_bytes = min(self._before_bytes, now_bytes)
        grown_bytes = now_bytes - self._before_bytes
        if grown_bytes > self._growth_bytes:
            self._end_slow(loop)
            for waiting in (self._streams, self._open):
                self._end(waiting, min(len(waiting) // 2, len(waiting) - _ALWAYS_ALLOWED), loop)
        self._check_again(loop)

    def _check_again(self, loop: asyncio.AbstractEventLoop) -> None:
        self._check_at_s = loop.time() + _CHECK_S
        self._checking = loop.call_at(self._check_at_s, self._check, loop)

    def _end_slow(self, loop: asyncio.AbstractEventLoop) -> None:
        """End all slow requests but the allowed few; authenticated ones only without others.

        The delay of the event loop itself does not count as slowness.
        """
        late_s = max(0.0, loop.time() - self._check_at_s)
        until_s, left, ended = loop.time() - SLOW_S - late_s, _ALWAYS_ALLOWED, 0
        for waiting in (self._streams, self._open, self._authenticated_calls):
            if ended and waiting is self._authenticated_calls:
                return  # this may have freed enough memory
            slow = sum(1 for since_s in waiting.values() if since_s < until_s)
            excess = max(slow - left, 0)
            self._end(waiting, excess, loop)
            ended, left = ended + excess, max(left - slow, 0)

    def _end(
        self, waiting: dict[asyncio.Timeout, float], count: int, loop: asyncio.AbstractEventLoop
    ) -> None:
        """End the ``count`` calls that have waited longest."""
        for timeout in tuple(islice(waiting, max(count, 0))):
            del waiting[timeout]
            self._ended.add(timeout)
            self._ended_s = loop.time()
            timeout.reschedule(loop.time())

    def messages(self, read: Read) -> AsyncIterator[Any]:
        """Return the messages of a stream; there is no time limit for the next one.

        Iterating raises OverloadedError if the stream was ended because too many are open or to
        free memory.
        """
        return _Messages(lambda: self._wait(read, self._streams, None))


class _Messages:
    """Asynchronous iterator of messages.

    It is no generator: the generator of a cancelled call would be left to the garbage collector.
    """

    def __init__(self, wait: Read) -> None:
        self._wait = wait

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        message = await self._wait()
        if message is grpc.aio.EOF:
            raise StopAsyncIteration
        return message
