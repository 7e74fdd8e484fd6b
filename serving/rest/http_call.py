"""Calls that arrive by HTTP, for the life cycle of gRPC calls.

The thread of a connection reads and writes; the call is answered in the event loop of the server,
by :class:`presage.serving.server.call.Calls`, which sees an :class:`HttpCall` as its gRPC context.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from queue import SimpleQueue
from typing import NamedTuple, NoReturn

import grpc

from presage.errors import without_frames
from presage.serving.server.call import Metadata

Answer = Callable[[object, "HttpCall"], Awaitable[bytes]]


class Outcome(NamedTuple):
    """End of a call: its response, or its status with a message and trailing metadata."""

    code: grpc.StatusCode
    content: bytes = b""
    details: str = ""
    trailing: tuple[tuple[str, str], ...] = ()


class AbortedError(Exception):
    """The call was ended with a status."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.details)
        self.outcome = outcome


class HttpCall:
    """Call that arrived by HTTP, as a gRPC context.

    Parameters
    ----------
    loop : AbstractEventLoop
        Event loop that answers the call.
    peer : str
        Address of the client, in gRPC's notation.
    metadata : sequence of (str, str)
        Metadata, such as the authorization.
    names : sequence of bytes
        Common names of the client's certificate.
    timeout_s : float
        Time until the deadline; infinite for none.
    on_unread : callable
        Called when the call ends before its body has been read.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        peer: str,
        metadata: Metadata,
        *,
        names: Sequence[bytes] = (),
        timeout_s: float = math.inf,
        on_unread: Callable[[], object] = lambda: None,
    ) -> None:
        self._loop = loop
        self._peer, self._metadata, self._names = peer, metadata, names
        self._deadline_s = time.monotonic() + timeout_s
        self._on_unread = on_unread
        self._task: asyncio.Task[Outcome] | None = None
        self._body: asyncio.Future[bytes] | None = None
        self._steps: SimpleQueue[Outcome | None] = SimpleQueue()

    # For Calls, in the event loop.

    def peer(self) -> str:
        """Return the address of the client."""
        return self._peer

    def invocation_metadata(self) -> Metadata:
        """Return the metadata."""
        return self._metadata

    def time_remaining(self) -> float | None:
        """Return the seconds until the deadline; None without one."""
        left_s = self._deadline_s - time.monotonic()
        return None if math.isinf(left_s) else left_s

    def auth_context(self) -> dict[str, Sequence[bytes]]:
        """Return the names of the client's certificate."""
        return {"x509_common_name": self._names} if self._names else {}

    async def read(self) -> bytes:
        """Return the body of the request."""
        self._body = self._loop.create_future()
        self._steps.put(None)
        try:
            return await self._body
        except asyncio.CancelledError:
            self._on_unread()
            raise

    async def abort(
        self,
        code: grpc.StatusCode,
        details: str = "",
        trailing_metadata: tuple[tuple[str, str], ...] = (),
    ) -> NoReturn:
        """End the call with a status."""
        raise AbortedError(Outcome(code, details=details, trailing=trailing_metadata))

    # For the thread of the connection.

    def begin(self, answer: Answer) -> None:
        """Answer the call in the event loop."""
        self._loop.call_soon_threadsafe(self._start, answer)

    def next_step(self) -> Outcome | None:
        """Wait until the body is to be read (None) or until the call has ended."""
        return self._steps.get()

    def supply(self, body: bytes) -> None:
        """Pass the body to the call."""
        self._loop.call_soon_threadsafe(self._end_read, body, None)

    def reject(self, error: Exception) -> None:
        """Raise an error of the body in the call."""
        self._loop.call_soon_threadsafe(self._end_read, b"", error)

    def cancel(self) -> None:
        """Cancel the call."""
        self._loop.call_soon_threadsafe(self._cancel)

    def _start(self, answer: Answer) -> None:
        self._task = self._loop.create_task(self._run(answer))
        self._task.add_done_callback(self._end)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _end_read(self, body: bytes, error: Exception | None) -> None:
        if self._body is None or self._body.done():  # the call has ended
            return
        if error is None:
            self._body.set_result(body)
        else:
            self._body.set_exception(error)

    async def _run(self, answer: Answer) -> Outcome:
        try:
            async with asyncio.timeout(self.time_remaining()):
                return Outcome(grpc.StatusCode.OK, await answer(None, self))
        except AbortedError as error:
            return without_frames(error).outcome
        except TimeoutError:
            return Outcome(
                grpc.StatusCode.DEADLINE_EXCEEDED,
                details="the deadline of Grpc-Timeout passed before the call was answered",
            )

    def _end(self, task: asyncio.Task[Outcome]) -> None:
        # Not in the coroutine: a task that is cancelled before its first step never runs it.
        if task.cancelled() or task.exception() is not None:
            self._steps.put(Outcome(grpc.StatusCode.CANCELLED, details="the server ended the call"))
        else:
            self._steps.put(task.result())
