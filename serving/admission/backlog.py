"""Calls that have arrived and that Python has not been handed yet.

gRPC accepts calls faster than they are answered, and hands them over one by one; behind its own
bound it cancels them without a reason. So its own count (channelz) is read now and then, and while
too many wait, calls are refused as they are handed over, which costs a fraction of an answer.

Only calls that wait in gRPC count. A call that was handed over and is still open, such as one whose
message has not arrived, an idle stream or a health watch, keeps no other call waiting. What
those that wait are is not known: as many of them count as recently arrived whole.

Reading the count takes 0.1 ms and 25 us more for every connection: the more there are, the rarer.
"""

from __future__ import annotations

import json
import time

from grpc._cython import cygrpc  # type: ignore[attr-defined]  # as grpcio-channelz does

from presage.errors import OverloadedError
from presage.serving.admission.open_calls import OpenCalls
from presage.serving.server_options import MOST_CALLS

_CHECK_S = 0.01  # between two reads of gRPC's count, at the least
_CHECKING = 0.01  # part of the time that is spent on it
_BUSY_S = 0.1  # a read that is overdue for longer comes after a pause


def servers() -> frozenset[int]:
    """Return this process's servers by gRPC's numbers, which they get when first asked for."""
    found: set[int] = set()
    while True:  # a hundred at a time, in the order of their numbers
        page = json.loads(cygrpc.channelz_get_servers(max(found, default=0) + 1))
        rows = page.get("server", ())
        found.update(int(row["ref"]["serverId"]) for row in rows)
        if page.get("end") or not rows:
            return frozenset(found)


class Backlog:
    """Waiting calls of the server that was created since ``before``, which :func:`servers` gave.

    Parameters
    ----------
    handed_over : OpenCalls
        Calls of that server that are open and do not wait.
    """

    def __init__(
        self, before: frozenset[int], handed_over: OpenCalls, most_calls: int = MOST_CALLS
    ) -> None:
        self._most_calls = most_calls
        self._id = max(servers() - before)
        self._handed_over = handed_over
        self._calls = 0
        self._call_s = 1e-3  # between two answers, recently
        self._checked_s = self._check_at_s = 0.0
        self._done = self._found = 0  # at the last check

    def check(self, now_s: float) -> None:
        """Refuse a call behind which too many wait.

        Raises
        ------
        OverloadedError
            With about the time after which they will have been answered.
        """
        self._calls -= 1  # this one was handed over
        if now_s >= self._check_at_s:
            self._read(now_s)
        if self._calls > self._most_calls:
            raise OverloadedError(
                f"{self._calls} calls wait, at most {self._most_calls} do; ask again later, for "
                "more in one call, or another replica",
                retry_after_s=self._calls * self._call_s,
            )

    def is_whole(self) -> None:
        """Count a call whose request has arrived whole."""
        self._handed_over.is_whole()

    def calls(self) -> tuple[int, int]:
        """Return how many calls have ever arrived, and how many of them have not ended."""
        started, done = self._counts()
        return started, started - done

    def _counts(self) -> tuple[int, int]:
        found = json.loads(cygrpc.channelz_get_server(self._id))["server"]["data"]
        started, succeeded, failed = (
            int(found.get(name, 0)) for name in ("callsStarted", "callsSucceeded", "callsFailed")
        )
        return started, succeeded + failed

    def _read(self, now_s: float) -> None:
        begin_s = time.thread_time()
        started, done = self._counts()
        # Only of a time in which there was always something to answer: pauses are no answers' time.
        if done > self._done and self._found > 1 and now_s - self._check_at_s < _BUSY_S:
            self._call_s = (now_s - self._checked_s) / (done - self._done)
        waiting = max(0, started - done - self._handed_over.count)
        self._calls = self._found = round(waiting * self._handed_over.whole_share)
        self._done, self._checked_s = done, now_s
        self._check_at_s = now_s + max(_CHECK_S, (time.thread_time() - begin_s) / _CHECKING)
