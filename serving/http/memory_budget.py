"""Memory limit for all requests of one HTTP server together."""

from __future__ import annotations

import threading
import time

from presage.serving.admission.malloc import trim
from presage.serving.http.connection import Connection, Phase

_SLOW_S = 1.0  # a body that has been arriving for longer may be ended
_WAIT_S = 3.0  # maximum wait for memory before a request is rejected
_POLL_S = 0.1
_TRIM_BYTES = 8 * 1024 * 1024


class BudgetExhaustedError(Exception):
    """No memory became free in time."""


class MemoryBudget:
    """Budget of bytes for requests, from the first byte of a body to its response.

    When the budget is exhausted, a request waits for up to three seconds. Meanwhile bodies that
    have been arriving for more than a second are ended, slowest first, so that incomplete bodies do
    not block other requests. Memory is returned to the kernel once no request holds any.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._reserved: dict[Connection, int] = {}
        self._freed = threading.Condition()
        self._peak = 0

    @property
    def reserved_bytes(self) -> int:
        """Bytes that requests hold at the moment."""
        return sum(self._reserved.values())

    def reserve(self, connection: Connection, count: int) -> None:
        """Reserve bytes for the request of a connection.

        Raises
        ------
        BudgetExhaustedError
            The bytes did not become free in time.
        ConnectionEndedError
            The connection was evicted.
        """
        ends_s = time.monotonic() + _WAIT_S
        with self._freed:
            while self.reserved_bytes + count > self.max_bytes:
                connection.check_open()
                if time.monotonic() > ends_s:
                    raise BudgetExhaustedError
                self._end_slowest(connection)
                self._freed.wait(_POLL_S)
            self._reserved[connection] = self._reserved.get(connection, 0) + count
            self._peak = max(self._peak, self.reserved_bytes)

    def release(self, connection: Connection) -> None:
        """Free the bytes of a connection's request."""
        with self._freed:
            self._reserved.pop(connection, None)
            is_large = not self._reserved and self._peak > _TRIM_BYTES
            if is_large:
                self._peak = 0
            self._freed.notify_all()
        if is_large:
            trim()

    def _end_slowest(self, requester: Connection) -> None:
        bodies = [one for one in self._reserved if one is not requester and one.phase is Phase.BODY]
        slowest = min(bodies, key=lambda one: one.since_s, default=None)
        if slowest is not None and time.monotonic() - slowest.since_s > _SLOW_S:
            slowest.evict()
