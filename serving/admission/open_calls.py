"""Count of the calls that gRPC has started in this process and that have not ended."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc

_DECAY = 0.99  # weight of earlier calls per new call: about the last hundred calls count


class OpenCalls(grpc.GenericRpcHandler):
    """Counter of open calls, installed as the first handler of a server.

    It handles no method itself. gRPC queries the handlers inside the task that answers the call,
    after the call's metadata has arrived and before its message has.

    Attributes
    ----------
    count : int
        Number of open calls.
    """

    def __init__(self) -> None:
        self.count = 0
        self._started = self._received = 1.0  # decayed counts

    def service(self, _details: Any) -> None:
        """Count a call until its task ends, and leave it to the other handlers."""
        task = asyncio.current_task()
        assert task is not None
        self.count += 1
        self._started = self._started * _DECAY + 1.0
        self._received *= _DECAY
        task.add_done_callback(self._ended)

    def mark_received(self) -> None:
        """Count a call whose request has arrived completely."""
        self._received += 1.0

    @property
    def received_share(self) -> float:
        """Share of the recent calls whose request arrived completely; others cause no work."""
        return min(1.0, self._received / self._started)

    def _ended(self, _task: object) -> None:
        self.count -= 1
