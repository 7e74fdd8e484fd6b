"""``grpc.reflection.v1alpha``: the services of a server and their messages."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Any

import grpc
from google.protobuf.descriptor_pool import Default, DescriptorPool
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc

from presage.serving.admission.unfinished_requests import UnfinishedRequests
from presage.serving.server.call import errors_as_statuses

SERVICE_NAME: str = reflection.SERVICE_NAME


class _Reflection(reflection.aio.ReflectionServicer):  # type: ignore[misc]
    """Reflection servicer with limits on its requests, which need no token."""

    def __init__(
        self, names: Iterable[str], pool: DescriptorPool, unfinished: UnfinishedRequests
    ) -> None:
        super().__init__(names, pool)
        self._unfinished = unfinished

    async def ServerReflectionInfo(  # noqa: N802
        self, _requests: object, context: Any
    ) -> AsyncIterator[Any]:
        """Answer each request of a stream."""
        requests = self._unfinished.messages(context.read)
        async with errors_as_statuses(context):
            async for response in super().ServerReflectionInfo(requests, context):
                yield response


def add_reflection(
    server: grpc.aio.Server,
    names: Iterable[str],
    unfinished: UnfinishedRequests,
    pool: DescriptorPool | None = None,
) -> None:
    """Add reflection of the named services, and of reflection itself, to a server."""
    reflected = _Reflection((*names, SERVICE_NAME), pool or Default(), unfinished)
    reflection_pb2_grpc.add_ServerReflectionServicer_to_server(reflected, server)
