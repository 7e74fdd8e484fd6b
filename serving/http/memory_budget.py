"""Memory that the requests of one server may take together."""

from __future__ import annotations

import threading
import time

from presage.serving.http.connection import Connection, Phase
from presage.serving.malloc import trim

_SLOW_S = 1.0  # a body that has been arriving for longer gives way
_EVICTION_S = 1.0  # that a closed connection's thread may take to end
_TRIM_BYTES = 8 * 1024 * 1024


class BudgetExhaustedError(Exception):
    """No memory is left, and no slow body could give way."""


class MemoryBudget:
    """Bytes held by requests, from a body's first byte to its response.

    When they are exhausted, the body that has been arriving for longest gives way, if that is over
    a second: bodies that are sent in part and held open keep nobody else out. Memory goes back to
    the kernel once no request holds any.
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
            They are not to be had.
        """
        ends_s = time.monotonic() + _EVICTION_S
        with self._freed:
            while self.held_bytes + count > self.most_bytes:
                self._make_room(connection)
                if not self._freed.wait(ends_s - time.monotonic()):
                    raise BudgetExhaustedError
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

    def _make_room(self, asking: Connection) -> None:
        slow_since_s = time.monotonic() - _SLOW_S
        slow = [
            one
            for one in self._held
            if one is not asking and one.phase is Phase.BODY and one.since_s < slow_since_s
        ]
        if not slow:
            raise BudgetExhaustedError
        victim = min(slow, key=lambda one: one.since_s)
        victim.evict()
