"""A server that answers every call with the bytes it was asked with: what gRPC itself costs."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import grpc

MOST_BYTES = 16 * 1024 * 1024


class Echo(grpc.GenericRpcHandler):
    """Any method of any service."""

    def service(self, _call: Any) -> Any:
        return grpc.unary_unary_rpc_method_handler(answer)


async def answer(request: bytes, _context: Any) -> bytes:
    return request


async def serve(port: int) -> None:
    lengths = [(f"grpc.max_{way}_message_length", MOST_BYTES) for way in ("receive", "send")]
    server = grpc.aio.server(options=lengths)
    server.add_generic_rpc_handlers((Echo(),))
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    await server.wait_for_termination()


asyncio.run(serve(int(sys.argv[1])))
