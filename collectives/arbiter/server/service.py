"""Implementation of ``presage.collectives.v1.ArbiterService``."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import suppress
from typing import TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from presage.collectives.arbiter.arbiter import Arbiter
from presage.collectives.arbiter.ranks.rank_stream import RankStream
from presage.collectives.arbiter.server import status
from presage.collectives.v1 import arbiter_pb2 as pb
from presage.errors import InvalidRequestError, OverloadedError
from presage.serving.server.call import Call, Calls

M = TypeVar("M", bound=Message)
FIRST_MESSAGE_S = 10.0
SERVICE_NAME = pb.DESCRIPTOR.services_by_name["ArbiterService"].full_name


class ArbiterService:
    """Service with one stream per rank.

    Parameters
    ----------
    max_streams : int
        Greatest number of open streams.
    """

    def __init__(self, arbiter: Arbiter, calls: Calls, max_streams: int) -> None:
        self._arbiter, self._calls, self._max_streams = arbiter, calls, max_streams
        self.streams = 0
        self._drawing = asyncio.Lock()  # so that time lines occupy one thread

    def handlers(self) -> grpc.GenericRpcHandler:
        """Return the handlers of all methods, for a gRPC server."""
        unary = self._calls.unary
        return grpc.method_handlers_generic_handler(
            SERVICE_NAME,
            {
                "Connect": self._calls.stream("Connect", "submit", self.connect),
                "Status": unary("Status", "view", self.status),
                "Explain": unary("Explain", "view", self.explain),
                "Timeline": unary("Timeline", "view", self.timeline),
            },
        )

    async def connect(
        self, requests: AsyncIterator[bytes], _call: Call
    ) -> AsyncGenerator[bytes, None]:
        """Serve the stream of a rank.

        Raises
        ------
        InvalidRequestError, RefusedAgentError, OverloadedError
            The registration is rejected, or a message is malformed.
        """
        if self.streams >= self._max_streams:
            raise OverloadedError(
                f"{self._max_streams} ranks are connected; raise --max-ranks", retry_after_s=1.0
            )
        self.streams += 1
        try:
            first = parse(pb.RankMessage, await _first(requests))
            if first.WhichOneof("content") != "registration":
                raise InvalidRequestError("the first message of a stream must be a registration")
            stream = await self._arbiter.connect(first.registration)
            reading = asyncio.create_task(self._read(requests, stream))
            try:
                async for message in _messages(stream, reading):
                    yield message.SerializeToString()
            finally:
                reading.cancel()
                has_left = reading.done() and not reading.cancelled() and not reading.exception()
                await self._arbiter.disconnect(stream, has_left=has_left and reading.result())
        finally:
            self.streams -= 1

    async def status(self, content: bytes, _call: Call) -> bytes:
        """Return switches and jobs."""
        parse(pb.StatusRequest, content)
        return status.status(self._arbiter).SerializeToString()

    async def explain(self, content: bytes, _call: Call) -> bytes:
        """Explain the decisions of a job."""
        request = parse(pb.ExplainRequest, content)
        number = request.number if request.HasField("number") else None
        return status.explain(self._arbiter, request.job, number).SerializeToString()

    async def timeline(self, content: bytes, _call: Call) -> bytes:
        """Return recent AllReduces."""
        request = parse(pb.TimelineRequest, content)
        if not (math.isfinite(request.last_s) and request.last_s >= 0):
            raise InvalidRequestError(f"last_s={request.last_s}, must be finite and at least 0")
        async with self._drawing:
            of_jobs, now_s = self._arbiter.recent.all_rows(), self._arbiter.now_s
            switches = status.switch_statuses(self._arbiter)

            def draw() -> bytes:
                found = status.timeline(of_jobs, switches, request.last_s, now_s)
                return found.SerializeToString()

            return await asyncio.to_thread(draw)

    async def _read(self, requests: AsyncIterator[bytes], stream: RankStream) -> bool:
        """Handle all messages of a rank; return whether it says that it leaves."""
        async for content in requests:
            message = parse(pb.RankMessage, content)
            if message.HasField("leave"):
                return True
            await self._arbiter.receive(stream, message)
        return False


async def _first(requests: AsyncIterator[bytes]) -> bytes:
    """Return the first message of a stream; a silent one must not count as a rank for ever."""
    try:
        async with asyncio.timeout(FIRST_MESSAGE_S):
            return await anext(requests, b"")
    except TimeoutError as error:
        raise InvalidRequestError(
            f"no registration within {FIRST_MESSAGE_S:g} s; send it at the start of the stream"
        ) from error


async def _messages(
    stream: RankStream, reading: asyncio.Task[bool]
) -> AsyncGenerator[pb.ArbiterMessage, None]:
    """Yield messages to a rank until either side of its stream ends."""
    while True:
        waiting = asyncio.create_task(stream.next())
        try:
            await asyncio.wait((waiting, reading), return_when=asyncio.FIRST_COMPLETED)
            if reading.done():
                await reading  # raises what is wrong with a message
                return
            message = waiting.result()
        finally:
            waiting.cancel()
            with suppress(asyncio.CancelledError):
                await waiting
        if message is None:
            return
        yield message


def parse(kind: type[M], content: bytes) -> M:
    """Return a message; raise InvalidRequestError if the content is none."""
    try:
        return kind.FromString(content)
    except DecodeError as error:
        raise InvalidRequestError(f"the request is not a {kind.__name__}") from error
