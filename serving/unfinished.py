"""Requests that are being received: bounded in number, in time and in memory.

gRPC gives a message to Python when it is whole; until then a client that sends slowly, or not at
all, costs what it has sent. When too many messages are unfinished, or memory grows while they are,
the calls that have waited longest are ended: an honest message is whole within milliseconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import islice
from typing import Any

from presage.features.errors import ExpiredError, OverloadedError
from presage.serving.malloc import in_use_bytes

MOST_UNFINISHED = 2_000  # requests that are received at once
RECEIVE_S = 10.0  # from a call's metadata to the end of its message
GROWTH_BYTES = 32 * 1024 * 1024  # of memory while requests are received, before some are ended
_CHECK_S = 0.01  # between two checks of memory
_SLOW_S = 0.1  # a message that takes longer may be ended to free memory
_FEW = 4  # requests of the largest size that memory always has room for


class Unfinished:
    """Requests of a server whose messages have not arrived whole.

    Parameters
    ----------
    freed : callable
        Called when a request was ended unread, whose memory may be given back.
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
        self._open: dict[asyncio.Timeout, float] = {}  # in the order in which they began
        self._ended: set[asyncio.Timeout] = set()
        self._before_bytes = 0  # when only few were being received
        self._checking: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._open)

    async def receive(self, read: Callable[[], Awaitable[Any]]) -> bytes:
        """Return a call's only message; b"" if its client sends none.

        Parameters
        ----------
        read : callable
            Of the call's gRPC context. An iterator of messages would keep the last one.

        Raises
        ------
        ExpiredError
            It did not arrive within ``receive_s``.
        OverloadedError
            The call was ended for others: too many are unfinished, or they take too much memory.
        """
        loop = asyncio.get_running_loop()
        timeout = asyncio.timeout(self._receive_s)
        try:
            async with timeout:
                self._open[timeout] = loop.time()
                self._bound(loop)
                message = await read()
            return message if isinstance(message, bytes) else b""
        except TimeoutError:
            self._freed()
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
        finally:
            self._open.pop(timeout, None)
            self._ended.discard(timeout)

    def _bound(self, loop: asyncio.AbstractEventLoop) -> None:
        if len(self._open) > self._most:
            self._end(1, loop)
        if len(self._open) > _FEW and self._checking is None:
            self._before_bytes = self._memory()
            self._checking = loop.call_later(_CHECK_S, self._check, loop)

    def _check(self, loop: asyncio.AbstractEventLoop) -> None:
        """End slow requests while memory has grown too much since only few were received."""
        self._checking = None
        if len(self._open) <= _FEW:
            return
        if self._memory() - self._before_bytes > self._growth_bytes:
            until_s = loop.time() - _SLOW_S
            slow = sum(1 for since_s in self._open.values() if since_s < until_s)
            self._end(max(slow - _FEW, 0), loop)
        self._checking = loop.call_later(_CHECK_S, self._check, loop)

    def _end(self, count: int, loop: asyncio.AbstractEventLoop) -> None:
        """End the calls that have waited longest."""
        for timeout in tuple(islice(self._open, count)):
            del self._open[timeout]
            self._ended.add(timeout)
            timeout.reschedule(loop.time())
