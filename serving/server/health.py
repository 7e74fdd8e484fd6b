"""``grpc.health.v1``: whether the server, a service or a model answers; Check and Watch.

Not grpc_health's own asyncio servicer: there a watcher that leaves takes the others' notice with
it, and one that does not read keeps every status from changing (grpcio-health-checking 1.81).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any

import grpc
from grpc_health.v1 import health_pb2 as pb

from presage.serving.admission.unfinished_requests import UnfinishedRequests
from presage.serving.server.call import errors_as_statuses

MOST_WATCHES = 2_000  # at once: each costs 20 KiB, and anyone may have one
SERVICE_NAME = pb.DESCRIPTOR.services_by_name["Health"].full_name

_Status = pb.HealthCheckResponse


class Health:
    """Statuses by name; "" is the server. Every name is NOT_SERVING until it is said to serve."""

    def __init__(self, names: Iterable[str]) -> None:
        self._statuses = dict.fromkeys(names, _Status.NOT_SERVING)
        self._changed = asyncio.Event()
        self._closing = False
        self._watches = 0

    def serve(self) -> None:
        """All that has a name answers from now on."""
        self._set(_Status.SERVING)

    def close(self) -> None:
        """Nothing answers any more, and watches end once they have said so."""
        self._closing = True
        self._set(_Status.NOT_SERVING)

    def handlers(self, unfinished: UnfinishedRequests) -> grpc.GenericRpcHandler:
        """Return what a server needs to answer.

        Anyone may ask, so requests are bounded by ``unfinished``. To gRPC they are streams of one
        message: others it would receive whole before it calls.
        """

        async def read(context: Any) -> Any:
            async with errors_as_statuses(context):
                return await unfinished.receive(context.read) or pb.HealthCheckRequest()

        async def check(_requests: object, context: Any) -> Any:
            return await self._check(await read(context), context)

        async def watch(_requests: object, context: Any) -> AsyncIterator[Any]:
            request = await read(context)
            if self._watches >= MOST_WATCHES:
                await context.abort(
                    grpc.StatusCode.RESOURCE_EXHAUSTED,
                    f"{MOST_WATCHES} watches are open, as many as may be; call Check now and then",
                )
            self._watches += 1
            try:
                async for status in self._watch(request):
                    yield status
            finally:
                self._watches -= 1

        of_request, of_status = pb.HealthCheckRequest.FromString, _Status.SerializeToString
        check_handler = grpc.stream_unary_rpc_method_handler(check, of_request, of_status)
        watch_handler = grpc.stream_stream_rpc_method_handler(watch, of_request, of_status)
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
                grpc.StatusCode.NOT_FOUND, f"no such name here; ask for {self._known()}"
            )
        return _Status(status=self._statuses[request.service])

    async def _watch(self, request: Any) -> AsyncIterator[Any]:
        said = None
        while True:
            changed = self._changed
            # A name that is not known may come to be: by the protocol, not an error here.
            status = self._statuses.get(request.service, _Status.SERVICE_UNKNOWN)
            if status != said:
                said = status
                yield _Status(status=status)
            elif self._closing:  # only once it was said: it may change while that is written
                return
            else:
                await changed.wait()

    def _known(self) -> str:
        return ", ".join(repr(name) for name in self._statuses)
