"""Limit on the calls that wait inside gRPC before Python starts them.

gRPC accepts calls faster than the server answers them and starts them one by one. Beyond its own
limit gRPC cancels calls without a reason. This module reads gRPC's call counters (channelz)
periodically. While too many calls wait, it rejects each call as it starts, which costs a fraction
of a response.

Only calls that wait inside gRPC count. A started call that is still open, such as one whose message
has not arrived, an idle stream or a health watch, delays no other call. The kind of a waiting call
is unknown, so the number of waiting calls is multiplied by the share of recent calls whose request
arrived completely.

Reading the counters takes 0.1 ms plus 25 us per connection, so it happens less often when there are
many connections.
"""

from __future__ import annotations

import json
import time

from grpc._cython import cygrpc  # type: ignore[attr-defined]  # as grpcio-channelz does

from presage.errors import OverloadedError
from presage.serving.admission.open_calls import OpenCalls
from presage.serving.server_options import MAX_QUEUED_CALLS

_CHECK_S = 0.01  # minimum interval between two reads of gRPC's counters
_MAX_CHECKING_SHARE = 0.01  # of the time
_BUSY_S = 0.1  # a read that is overdue by more follows an idle period


def server_ids() -> frozenset[int]:
    """Return the channelz ids of this process's servers; gRPC assigns them on the first query."""
    found: set[int] = set()
    while True:  # pages of a hundred servers, in the order of their ids
        page = json.loads(cygrpc.channelz_get_servers(max(found, default=0) + 1))
        rows = page.get("server", ())
        found.update(int(row["ref"]["serverId"]) for row in rows)
        if page.get("end") or not rows:
            return frozenset(found)


class Backlog:
    """Calls that wait inside gRPC for one server, and the limit on their number.

    Parameters
    ----------
    before : frozenset of int
        Result of :func:`server_ids` before the server was created.
    open_calls : OpenCalls
        Started calls of that server; they do not wait.
    max_calls : int
        Limit on waiting calls.
    """

    def __init__(
        self, before: frozenset[int], open_calls: OpenCalls, max_calls: int = MAX_QUEUED_CALLS
    ) -> None:
        self._max_calls = max_calls
        self._id = max(server_ids() - before)
        self._open_calls = open_calls
        self._calls = 0
        self._call_s = 1e-3  # recent time between two responses
        self._checked_s = self._check_at_s = 0.0
        self._done = self._waiting = 0  # at the last check

    def check(self, now_s: float) -> None:
        """Reject a call that starts while too many others wait.

        Raises
        ------
        OverloadedError
            Too many calls wait. ``retry_after_s`` is the estimated time until they are answered.
        """
        self._calls -= 1  # this call has started
        if now_s >= self._check_at_s:
            self._read(now_s)
        if self._calls > self._max_calls:
            raise OverloadedError(
                f"{self._calls} calls are waiting and the limit is {self._max_calls}; retry later, "
                "send more predictions in one call, or use another replica",
                retry_after_s=self._calls * self._call_s,
            )

    def mark_received(self) -> None:
        """Count a call whose request has arrived completely."""
        self._open_calls.mark_received()

    def count_calls(self) -> tuple[int, int]:
        """Return the number of calls that ever arrived and the number that have not ended."""
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
        # Only while calls were waiting all the time: idle periods say nothing about the work.
        if done > self._done and self._waiting > 1 and now_s - self._check_at_s < _BUSY_S:
            self._call_s = (now_s - self._checked_s) / (done - self._done)
        waiting = max(0, started - done - self._open_calls.count)
        self._calls = self._waiting = round(waiting * self._open_calls.received_share)
        self._done, self._checked_s = done, now_s
        took_s = time.thread_time() - begin_s
        self._check_at_s = now_s + max(_CHECK_S, took_s / _MAX_CHECKING_SHARE)
