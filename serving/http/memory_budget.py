"""Memory that the requests of one server may take together."""

from __future__ import annotations

import threading
import time

from presage.serving.admission.malloc import trim
from presage.serving.http.connection import Connection, Phase

_SLOW_S = 1.0  # a body that has been arriving for longer gives way
_WAIT_S = 3.0  # for memory, before a request is refused
_LOOK_S = 0.1
_TRIM_BYTES = 8 * 1024 * 1024


class BudgetExhaustedError(Exception):
    """No memory became free in time."""


class MemoryBudget:
    """Bytes held by requests, from a body's first byte to its response.

    When they are exhausted, a request waits for up to three seconds. Meanwhile the body that has
    been arriving for longest is ended, then the next, where that is over a second: bodies that are
    sent in part and held open do not keep others out. Memory goes back to the kernel once no
    request holds any.
    """

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self._held: dict[Connection, int] = {}
        self._freed = threading.Condition()
        self._peak = 0

    @property
    def held_bytes(self) -> int:
        """Bytes that requests hold now."""
        return sum(self._held.values())

    def reserve(self, connection: Connection, count: int) -> None:
        """Add bytes to what a connection's request holds.

        Raises
        ------
        BudgetExhaustedError
            They did not become free in time.
        ConnectionEndedError
            The connection gave way to another one.
        """
        ends_s = time.monotonic() + _WAIT_S
        with self._freed:
            while self.held_bytes + count > self.most_bytes:
                connection.check_open()
                if time.monotonic() > ends_s:
                    raise BudgetExhaustedError
                self._end_slowest(connection)
                self._freed.wait(_LOOK_S)
            self._held[connection] = self._held.get(connection, 0) + count
            self._peak = max(self._peak, self.held_bytes)

    def release(self, connection: Connection) -> None:
        """Free what a connection's request held."""
        with self._freed:
            self._held.pop(connection, None)
            is_large = not self._held and self._peak > _TRIM_BYTES
            if is_large:
                self._peak = 0
            self._freed.notify_all()
        if is_large:
            trim()

    def _end_slowest(self, asking: Connection) -> None:
        bodies = [one for one in self._held if one is not asking and one.phase is Phase.BODY]
        slowest = min(bodies, key=lambda one: one.since_s, default=None)
        if slowest is not None and time.monotonic() - slowest.since_s > _SLOW_S:
            slowest.evict()
