"""One HTTP connection: which phase it is in, until when, and its reads and writes.

Every read and write has a deadline for the whole phase, so that a client which sends or accepts one
byte now and then gains no time by it.
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
    """The connection was closed: too slow, or it gave way to another one."""


class HeadTooLargeError(ConnectionAbortedError):
    """Request line and headers are larger than ``HttpLimits.head_bytes``."""


class Phase(Enum):
    """What a connection is doing."""

    IDLE = auto()  # between requests
    HEAD = auto()  # TLS handshake, request line and headers
    BODY = auto()
    HANDLING = auto()  # the server computes the response
    SENDING = auto()
    LINGERING = auto()  # discards the rest of a refused request, so that its client reads why


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Bounds of one server.

    Attributes
    ----------
    connections, per_peer : int
        Open connections, and so threads: in total, and of one peer (an IPv4 address, or a /64
        network of IPv6). At the bound, the connection that made least progress is closed.
    idle_s : float
        Between two requests.
    head_s, head_bytes : float, int
        For the TLS handshake, request line and headers.
    body_s, body_bytes_per_s : float, int
        For a body: ``body_s`` plus the bytes that have arrived at that rate.
    send_s : float
        For a response to be taken.
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
    """An open connection. Its own thread calls all methods but :meth:`evict`."""

    def __init__(self, connection: socket.socket, peer: str, limits: HttpLimits) -> None:
        self.socket = connection
        self.peer = peer
        self.requests = 0  # that were read
        self.is_authenticated = False
        self.on_body_bytes: Callable[[int], object] = lambda count: None
        self._limits = limits
        self._ended = threading.Event()
        self._arrived = 0  # bytes of this phase
        self._enter(Phase.HEAD, limits.head_s)

    @property
    def can_be_evicted(self) -> bool:
        """Whether closing it loses no work of the server's."""
        return self.phase is not Phase.HANDLING and not self._ended.is_set()

    @property
    def progress(self) -> tuple[bool, float]:
        """Sort key: the least is closed first. A phase that ends is progress, single bytes are not.

        Connections of authenticated callers come last.
        """
        return self.is_authenticated, self.since_s

    def wait_for_request(self) -> None:
        """Enter IDLE; the first byte of the next request enters HEAD."""
        self._enter(Phase.IDLE, self._limits.idle_s)

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
        """Wait; :meth:`evict` ends it."""
        self._enter(Phase.IDLE, delay_s)
        self._ended.wait(delay_s)

    def evict(self) -> None:
        """End it from another thread: what blocks on the socket returns at once."""
        self._ended.set()
        # Not SSLSocket's own method, which would free what the other thread is using.
        with suppress(OSError):
            socket.socket.shutdown(self.socket, socket.SHUT_RDWR)

    def check_open(self) -> None:
        """Raise ConnectionEndedError where it gave way to another connection."""
        if self._ended.is_set():
            raise ConnectionEndedError(f"{self.peer}: gave way to another connection")

    def receive_into(self, buffer: memoryview) -> int:
        """Read what has arrived, at least a byte; 0 at the end.

        Raises
        ------
        ConnectionEndedError
            The phase has lasted too long, or the connection gave way.
        HeadTooLargeError
            The head has more than ``head_bytes``.
        """
        try:
            self._set_timeout()
            count = self.socket.recv_into(buffer[:_CHUNK_BYTES])
        except TimeoutError:
            raise ConnectionEndedError(f"{self.peer}: request not complete in time") from None
        if count:
            self._received(count)
        return count

    def send(self, content: memoryview) -> int:
        """Write what the client takes; the deadline is that of the whole response."""
        if self.phase is not Phase.SENDING:
            self._enter(Phase.SENDING, self._limits.send_s)
        try:
            self._set_timeout()
            return self.socket.send(content)
        except TimeoutError:
            raise ConnectionEndedError(f"{self.peer}: response not taken in time") from None

    def _enter(self, phase: Phase, limit_s: float) -> None:
        self.phase, self.since_s = phase, time.monotonic()
        self.deadline_s = self.since_s + limit_s
        self._arrived = 0

    def _received(self, count: int) -> None:
        if self.phase is Phase.IDLE:
            self._enter(Phase.HEAD, self._limits.head_s)
        self._arrived += count
        if self.phase is Phase.HEAD and self._arrived > self._limits.head_bytes:
            raise HeadTooLargeError(f"{self.peer}: head of over {self._limits.head_bytes} bytes")
        if self.phase is Phase.BODY:
            self.deadline_s += count / self._limits.body_bytes_per_s
            self.on_body_bytes(count)

    def _set_timeout(self) -> None:
        left_s = self.deadline_s - time.monotonic()
        self.check_open()
        if left_s <= 0:
            raise ConnectionEndedError(f"{self.peer}: too long in {self.phase.name}")
        self.socket.settimeout(min(left_s, 3600.0))


class Incoming(io.RawIOBase):
    """The requests of a connection, as a file."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read what has arrived; see :meth:`Connection.receive_into`."""
        return self._connection.receive_into(memoryview(buffer))


class Outgoing(io.RawIOBase):
    """The responses of a connection, as a file."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, content: Any) -> int:
        """Write what the client takes; see :meth:`Connection.send`."""
        return self._connection.send(memoryview(content))
