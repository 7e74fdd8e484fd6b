"""Calls that this process was handed by gRPC and that have not ended, whatever they are."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc

_RECENT = 0.99  # what a call counts when the next one comes: the last hundred or so count


class OpenCalls(grpc.GenericRpcHandler):
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
        self._handed_over = self._whole = 1.0  # recently

    def service(self, _details: Any) -> None:
        """Count a call until its task ends; leave it to the other handlers."""
        task = asyncio.current_task()
        assert task is not None
        self.count += 1
        self._handed_over = self._handed_over * _RECENT + 1.0
        self._whole *= _RECENT
        task.add_done_callback(self._ended)

    def is_whole(self) -> None:
        """Count a call whose request has arrived whole."""
        self._whole += 1.0

    @property
    def whole_share(self) -> float:
        """Part of the recent calls whose request arrived whole; the others ask for no work."""
        return min(1.0, self._whole / self._handed_over)

    def _ended(self, _task: object) -> None:
        self.count -= 1
