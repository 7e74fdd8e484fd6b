"""Calls that have arrived and are not answered yet, most of which Python has not seen.

gRPC takes calls in faster than they are answered, and hands them over one by one; behind its own
bound it cancels them without a reason. So its own count (channelz) is looked at now and then, and
while there are too many, calls are refused as they come up, which costs a fraction of an answer.
"""

from __future__ import annotations

import json
from typing import Any

from grpc._cython import cygrpc  # type: ignore[attr-defined]  # as grpcio-channelz does

from presage.features.errors import OverloadedError
from presage.serving.options import MOST_CALLS

_LOOK_S = 0.01


class Backlog:
    """What waits of the server that was created last; make it right after the server."""

    def __init__(self, most_calls: int = MOST_CALLS) -> None:
        self._most_calls = most_calls
        servers: list[dict[str, Any]] = json.loads(cygrpc.channelz_get_servers(0))["server"]
        self._id = max(int(server["ref"]["serverId"]) for server in servers)
        self._calls = 0
        self._call_s = 1e-3  # between two answers of late
        self._looked_s = self._done = 0.0

    def check(self, now_s: float) -> None:
        """Refuse a call where too many wait behind it.

        Raises
        ------
        OverloadedError
            With about the time after which they will have been answered.
        """
        self._calls -= 1  # this one comes up
        if now_s - self._looked_s > _LOOK_S:
            self._look(now_s)
        if self._calls > self._most_calls:
            raise OverloadedError(
                f"{self._calls} calls wait, at most {self._most_calls} do; ask again later, for "
                "more in one call, or another replica",
                retry_after_s=self._calls * self._call_s,
            )

    def calls(self) -> tuple[int, int]:
        """Calls that have ever arrived, and those of them that have not ended."""
        started, done = self._counts()
        return started, started - done

    def _counts(self) -> tuple[int, int]:
        found = json.loads(cygrpc.channelz_get_server(self._id))["server"]["data"]
        started, succeeded, failed = (
            int(found.get(name, 0)) for name in ("callsStarted", "callsSucceeded", "callsFailed")
        )
        return started, succeeded + failed

    def _look(self, now_s: float) -> None:
        started, done = self._counts()
        if done > self._done:
            self._call_s = min((now_s - self._looked_s) / (done - self._done), 1.0)
        self._calls, self._done, self._looked_s = started - done, done, now_s
