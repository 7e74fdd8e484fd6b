"""Calls that this process was handed by gRPC and that have not ended, whatever they are."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc


class OpenCalls(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc's is untyped
    """A handler of no method. As the first of a server's handlers it sees every call.

    gRPC asks handlers for the method within the task that answers the call, once the call's
    metadata has arrived and before its message has.

    Attributes
    ----------
    count : int
        Calls that are open.
    """

    def __init__(self) -> None:
        self.count = 0

    def service(self, _details: Any) -> None:
        """Count a call until its task ends; leave it to the other handlers."""
        task = asyncio.current_task()
        assert task is not None
        self.count += 1
        task.add_done_callback(self._ended)

    def _ended(self, _task: object) -> None:
        self.count -= 1
