"""gRPC server on a free port, in the event loop of the test, and a channel to it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc


@asynccontextmanager
async def answering(
    *handlers: grpc.GenericRpcHandler, options: Any = ()
) -> AsyncIterator[grpc.aio.Channel]:
    """Yield a channel to a server of these handlers; both end with the block."""
    server = grpc.aio.server()
    server.add_generic_rpc_handlers(handlers)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
            yield channel
    finally:
        await server.stop(0)


async def ended(call: Any) -> tuple[grpc.StatusCode, str]:
    """Return the status and the message of a rejected call."""
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error.code(), error.details() or ""
    raise AssertionError("the call was answered")
