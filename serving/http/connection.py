"""HTTP connection with phases, deadlines, reads and writes.

The deadline of a read or write applies to the whole phase. A client that sends or accepts single
bytes at intervals gains no time.
"""

from __future__ import annotations

import io
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

_CHUNK_BYTES = 256 * 1024  # largest single read


class ConnectionEndedError(ConnectionAbortedError):
    """The connection was closed because it was too slow or was evicted for another one."""


class HeadTooLargeError(ConnectionAbortedError):
    """Request line and headers are larger than ``HttpLimits.head_bytes``."""


class Phase(Enum):
    """Current activity of a connection."""

    IDLE = auto()  # between requests
    HEAD = auto()  # TLS handshake, request line and headers
    ADMISSION = auto()  # the server authenticates the client, and may delay its rejection
    BODY = auto()
    HANDLING = auto()  # the server computes the response
    SENDING = auto()
    LINGERING = auto()  # discards the rest of a rejected request, so that its client reads why


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Limits of one server.

    Attributes
    ----------
    connections, per_peer : int
        Open connections, hence threads, in total and per peer (an IPv4 address or an IPv6 /64
        network). At the limit, the connection with the least progress is closed.
    idle_s : float
        Time between two requests.
    head_s, head_bytes : float, int
        Time and size of the TLS handshake, request line and headers.
    body_s, body_bytes_per_s : float, int
        Time of a body: ``body_s`` plus the arrived bytes divided by the rate.
    send_s : float
        Time until the client has taken the response.
    """

    connections: int = 64
    per_peer: int = 48
    idle_s: float = 60.0
    head_s: float = 10.0
    head_bytes: int = 32 * 1024
    body_s: float = 10.0
    body_bytes_per_s: int = 1024 * 1024
    send_s: float = 30.0


class Connection:
    """Open connection; only :meth:`evict` and :meth:`stop_reading` may be called by other threads.

    Attributes
    ----------
    on_body_bytes : callable
        Called with the number of bytes of a body that have arrived.
    on_evict : callable
        Called by the thread that evicts the connection.
    """

    def __init__(self, connection: socket.socket, peer: str, limits: HttpLimits) -> None:
        self.socket = connection
        self.peer = peer
        self.requests = 0  # number of requests that were read
        self.is_authenticated = False
        self.on_body_bytes: Callable[[int], object] = lambda count: None
        self.on_evict: Callable[[], object] = lambda: None
        self._limits = limits
        self._ended = threading.Event()
        self._arrived = 0  # bytes received in this phase
        self._enter(Phase.HEAD, limits.head_s)

    @property
    def can_be_evicted(self) -> bool:
        """Whether closing the connection loses no work of the server."""
        return self.phase is not Phase.HANDLING and not self._ended.is_set()

    @property
    def progress(self) -> tuple[bool, float]:
        """Sort key for eviction, least first.

        Completing a phase is progress, receiving single bytes is not. Connections of authenticated
        callers come last.
        """
        return self.is_authenticated, self.since_s

    def wait_for_request(self) -> None:
        """Enter IDLE until the first byte of the next request, which enters HEAD."""
        self._enter(Phase.IDLE, self._limits.idle_s)

    def wait_for_admission(self) -> None:
        """Enter ADMISSION."""
        self._enter(Phase.ADMISSION, float("inf"))

    def read_body(self) -> None:
        """Enter BODY."""
        self._enter(Phase.BODY, self._limits.body_s)

    def handle(self) -> None:
        """Enter HANDLING."""
        self.requests += self.phase in (Phase.IDLE, Phase.HEAD)
        self._enter(Phase.HANDLING, float("inf"))

    def linger(self, limit_s: float) -> None:
        """Enter LINGERING."""
        self._enter(Phase.LINGERING, limit_s)

    def pause(self, delay_s: float) -> None:
        """Wait for ``delay_s`` or until :meth:`evict`."""
        self._enter(Phase.IDLE, delay_s)
        self._ended.wait(delay_s)

    def evict(self) -> None:
        """End the connection from another thread; blocking socket calls return at once."""
        self._ended.set()
        # SSLSocket's own method would free memory that the other thread uses.
        with suppress(OSError):
            socket.socket.shutdown(self.socket, socket.SHUT_RDWR)
        self.on_evict()

    def stop_reading(self) -> None:
        """End the input from another thread; a response can still be sent."""
        with suppress(OSError):
            socket.socket.shutdown(self.socket, socket.SHUT_RD)

    def check_open(self) -> None:
        """Raise ConnectionEndedError if the connection was evicted."""
        if self._ended.is_set():
            raise ConnectionEndedError(f"{self.peer}: closed in favour of another connection")

    def receive_into(self, buffer: memoryview) -> int:
        """Read the bytes that have arrived; return their number, 0 at the end of the stream.

        Raises
        ------
        ConnectionEndedError
            The phase has lasted too long, the connection was evicted, or it ended within a head.
        HeadTooLargeError
            The head has more than ``head_bytes``.
        """
        try:
            self._set_timeout()
            count = self.socket.recv_into(buffer[:_CHUNK_BYTES])
        except TimeoutError:
            raise ConnectionEndedError(f"{self.peer}: request was not complete in time") from None
        if count:
            self._count_received(count)
        elif self.phase is Phase.HEAD and self._arrived:
            # http.server would take the headers so far for all of them.
            raise ConnectionEndedError(f"{self.peer}: connection closed within a head")
        return count

    def send(self, content: memoryview) -> int:
        """Write the bytes that the client accepts; return their number.

        The deadline applies to the whole response.
        """
        if self.phase is not Phase.SENDING:
            self._enter(Phase.SENDING, self._limits.send_s)
        try:
            self._set_timeout()
            return self.socket.send(content)
        except TimeoutError:
            raise ConnectionEndedError(f"{self.peer}: response was not taken in time") from None

    def _enter(self, phase: Phase, limit_s: float) -> None:
        self.phase, self.since_s = phase, time.monotonic()
        self.deadline_s = self.since_s + limit_s
        self._arrived = 0

    def _count_received(self, count: int) -> None:
        if self.phase is Phase.IDLE:
            self._enter(Phase.HEAD, self._limits.head_s)
        self._arrived += count
        if self.phase is Phase.HEAD and self._arrived > self._limits.head_bytes:
            raise HeadTooLargeError(
                f"{self.peer}: head is larger than {self._limits.head_bytes} bytes"
            )
        if self.phase is Phase.BODY:
            self.deadline_s += count / self._limits.body_bytes_per_s
            self.on_body_bytes(count)

    def _set_timeout(self) -> None:
        left_s = self.deadline_s - time.monotonic()
        self.check_open()
        if left_s <= 0:
            raise ConnectionEndedError(f"{self.peer}: too long in {self.phase.name}")
        self.socket.settimeout(min(left_s, 3600.0))


class RequestReader(io.RawIOBase):
    """Raw input stream of a connection's requests."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read the bytes that have arrived; see :meth:`Connection.receive_into`."""
        return self._connection.receive_into(memoryview(buffer))


class ResponseWriter(io.RawIOBase):
    """Raw output stream of a connection's responses."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, content: Any) -> int:
        """Write the bytes that the client accepts; see :meth:`Connection.send`."""
        return self._connection.send(memoryview(content))
