"""``grpc.health.v1``: health of the server, of each service and of each model; Check and Watch.

The asyncio servicer of grpc_health is not used: there a disconnecting watcher suppresses the
notification of the others, and a watcher that does not read blocks every status change
(grpcio-health-checking 1.81).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any

import grpc
from grpc_health.v1 import health_pb2 as pb

from presage.serving.admission.unfinished_requests import UnfinishedRequests
from presage.serving.server.call import errors_as_statuses

MAX_WATCHES = 2_000  # concurrent watches; each costs 20 KiB and needs no token
SERVICE_NAME = pb.DESCRIPTOR.services_by_name["Health"].full_name

_Status = pb.HealthCheckResponse


class Health:
    """Health status by name, "" for the server; NOT_SERVING until :meth:`set_serving`."""

    def __init__(self, names: Iterable[str]) -> None:
        self._statuses = dict.fromkeys(names, _Status.NOT_SERVING)
        self._changed = asyncio.Event()
        self._closing = False
        self._watches = 0

    def set_serving(self) -> None:
        """Set all statuses to SERVING."""
        self._set(_Status.SERVING)

    @property
    def is_serving(self) -> bool:
        """Whether the server is serving; any thread may read it."""
        return all(status == _Status.SERVING for status in self._statuses.values())

    def close(self) -> None:
        """Set all statuses to NOT_SERVING; watches end after sending it."""
        self._closing = True
        self._set(_Status.NOT_SERVING)

    def handlers(self, unfinished: UnfinishedRequests) -> grpc.GenericRpcHandler:
        """Return the gRPC handlers.

        No token is required, so ``unfinished`` limits the requests. gRPC treats them as streams of
        one message, because it would receive unary requests completely before calling a handler.
        """

        async def read(context: Any) -> Any:
            async with errors_as_statuses(context):
                return await unfinished.receive(context.read) or pb.HealthCheckRequest()

        async def check(_requests: object, context: Any) -> Any:
            return await self._check(await read(context), context)

        async def watch(_requests: object, context: Any) -> AsyncIterator[Any]:
            request = await read(context)
            if self._watches >= MAX_WATCHES:
                await context.abort(
                    grpc.StatusCode.RESOURCE_EXHAUSTED,
                    f"{MAX_WATCHES} watches are open, which is the limit; poll with Check instead",
                )
            self._watches += 1
            try:
                async for status in self._watch(request):
                    yield status
            finally:
                self._watches -= 1

        parse, serialize = pb.HealthCheckRequest.FromString, _Status.SerializeToString
        check_handler = grpc.stream_unary_rpc_method_handler(check, parse, serialize)
        watch_handler = grpc.stream_stream_rpc_method_handler(watch, parse, serialize)
        return grpc.method_handlers_generic_handler(
            SERVICE_NAME, {"Check": check_handler, "Watch": watch_handler}
        )

    def _set(self, status: int) -> None:
        self._statuses = dict.fromkeys(self._statuses, status)
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def _check(self, request: Any, context: Any) -> Any:
        if request.service not in self._statuses:
            await context.abort(
                grpc.StatusCode.NOT_FOUND,
                f"unknown service name; use one of {self._service_names()}",
            )
        return _Status(status=self._statuses[request.service])

    async def _watch(self, request: Any) -> AsyncIterator[Any]:
        sent = None
        while True:
            changed = self._changed
            # By the protocol an unknown name is no error for Watch: it may become known.
            status = self._statuses.get(request.service, _Status.SERVICE_UNKNOWN)
            if status != sent:
                sent = status
                yield _Status(status=status)
            elif self._closing:  # only after it was sent: it may change during the write
                return
            else:
                await changed.wait()

    def _service_names(self) -> str:
        return ", ".join(repr(name) for name in self._statuses)
