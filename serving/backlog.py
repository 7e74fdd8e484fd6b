"""Calls that have arrived and are not answered yet, most of which Python has not seen.

gRPC takes calls in faster than they are answered, and hands them over one by one; behind its own
bound it cancels them without a reason. So its own count (channelz) is looked at now and then, and
while there are too many, calls are refused as they come up, which costs a fraction of an answer.

A look takes 0.1 ms and 25 us more for every connection: the more there are, the rarer it is.
"""

from __future__ import annotations

import json
import time

from grpc._cython import cygrpc  # type: ignore[attr-defined]  # as grpcio-channelz does

from presage.features.errors import OverloadedError
from presage.serving.options import MOST_CALLS

_LOOK_S = 0.01  # from look to look, at the least
_LOOKING = 0.01  # part of the time that is spent on it
_BUSY_S = 0.1  # a look that is overdue for longer comes after a pause


def servers() -> frozenset[int]:
    """Those of this process by gRPC's numbers, which they get when they are first asked for."""
    found: set[int] = set()
    while True:  # a hundred at a time, in the order of their numbers
        page = json.loads(cygrpc.channelz_get_servers(max(found, default=0) + 1))
        rows = page.get("server", ())
        found.update(int(row["ref"]["serverId"]) for row in rows)
        if page.get("end") or not rows:
            return frozenset(found)


class Backlog:
    """What waits of the server that was created since ``before``, which :func:`servers` gave."""

    def __init__(self, before: frozenset[int], most_calls: int = MOST_CALLS) -> None:
        self._most_calls = most_calls
        self._id = max(servers() - before)
        self._calls = 0
        self._call_s = 1e-3  # between two answers of late
        self._looked_s = self._look_at_s = 0.0
        self._done = self._found = 0  # when it was looked at last

    def check(self, now_s: float) -> None:
        """Refuse a call where too many wait behind it.

        Raises
        ------
        OverloadedError
            With about the time after which they will have been answered.
        """
        self._calls -= 1  # this one comes up
        if now_s >= self._look_at_s:
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
        begin_s = time.thread_time()
        started, done = self._counts()
        # Only of a time in which there was always something to answer: pauses are no answers' time.
        if done > self._done and self._found > 1 and now_s - self._look_at_s < _BUSY_S:
            self._call_s = (now_s - self._looked_s) / (done - self._done)
        self._calls = self._found = started - done
        self._done, self._looked_s = done, now_s
        self._look_at_s = now_s + max(_LOOK_S, (time.thread_time() - begin_s) / _LOOKING)
