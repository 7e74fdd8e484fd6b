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

SERVICE_NAME = pb.DESCRIPTOR.services_by_name["Health"].full_name

_Status = pb.HealthCheckResponse


class Health:
    """Statuses by name; "" is the server. Every name is NOT_SERVING until it is said to serve."""

    def __init__(self, names: Iterable[str]) -> None:
        self._statuses = dict.fromkeys(names, _Status.NOT_SERVING)
        self._changed = asyncio.Event()
        self._closing = False

    def serve(self) -> None:
        """All that has a name answers from now on."""
        self._set(_Status.SERVING)

    def close(self) -> None:
        """Nothing answers any more, and watches end once they have said so."""
        self._closing = True
        self._set(_Status.NOT_SERVING)

    def handlers(self) -> grpc.GenericRpcHandler:
        """What a server needs to answer."""
        of_request = pb.HealthCheckRequest.FromString
        check = grpc.unary_unary_rpc_method_handler(
            self._check, of_request, _Status.SerializeToString
        )
        watch = grpc.unary_stream_rpc_method_handler(
            self._watch, of_request, _Status.SerializeToString
        )
        return grpc.method_handlers_generic_handler(SERVICE_NAME, {"Check": check, "Watch": watch})

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

    async def _watch(self, request: Any, _context: Any) -> AsyncIterator[Any]:
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
