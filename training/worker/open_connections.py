"""Open connections of a worker to other workers, closed when the leader ends their generation."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from presage.training.synchronous_accumulation import Ring


class OpenConnections:
    """Ring of a worker, and the connection over which it sends or receives the training state.

    Parameters
    ----------
    lock : threading.Condition
        Held while connections are set or closed.
    is_ended : callable
        Whether a generation cannot go on.
    """

    def __init__(self, lock: threading.Condition, is_ended: Callable[[int], bool]) -> None:
        self._lock, self._is_ended = lock, is_ended
        self._ring: Ring | None = None
        self._transfer: tuple[int, socket.socket] | None = None  # with its generation

    def attach(self, ring: Ring | None) -> None:
        """Set the ring to close when the leader ends its generation."""
        with self._lock:
            self._ring = ring
            self.shut_ended()

    @contextmanager
    def closed_at_end(self, connection: socket.socket, generation: int) -> Iterator[None]:
        """Shut a connection down if the leader ends its generation, so that it blocks nothing."""
        with self._lock:
            self._transfer = (generation, connection)
            self.shut_ended()
        try:
            yield
        finally:
            with self._lock:
                self._transfer = None

    def shut_ended(self) -> None:
        """Close the ring and the transfer if their generation ended; the caller holds the lock."""
        if self._ring is not None and self._is_ended(self._ring.generation):
            self._ring.close()
        if self._transfer is not None and self._is_ended(self._transfer[0]):
            with suppress(OSError):
                self._transfer[1].shutdown(socket.SHUT_RDWR)
