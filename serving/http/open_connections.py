"""Open connections of a server: at most so many, and at most so many of one peer."""

from __future__ import annotations

import ipaddress
import socket
import threading
from collections.abc import Callable
from contextlib import suppress

from presage.serving.http.connection import Connection, HttpLimits

_EVICTION_S = 1.0  # that a closed connection's thread may take to end


class Connections:
    """Table of open connections. At a bound the one that made least progress gives way."""

    def __init__(self, limits: HttpLimits) -> None:
        self._limits = limits
        self._open: dict[socket.socket, Connection] = {}
        self._changed = threading.Condition()

    def __len__(self) -> int:
        return len(self._open)

    def __getitem__(self, connection: socket.socket) -> Connection:
        with self._changed:
            return self._open[connection]

    def add(self, connection: socket.socket, address: str) -> bool:
        """Add a connection; False where none of those that are open can give way."""
        peer = peer_of(address)
        with self._changed:
            while crowd := self._crowd(peer):
                victim = min(
                    (one for one in crowd if one.can_be_evicted),
                    key=lambda one: one.progress,
                    default=None,
                )
                if victim is None:
                    return False
                victim.evict()
                if not self._changed.wait_for(self._has_ended(victim), _EVICTION_S):
                    return False
            self._open[connection] = Connection(connection, peer, self._limits)
        return True

    def remove(self, connection: socket.socket) -> None:
        """Note that a connection is closed."""
        with self._changed:
            self._open.pop(connection, None)
            self._changed.notify_all()

    def end(self, grace_s: float) -> None:
        """Read no more of any connection; wait until they have been answered, and closed."""
        with self._changed:
            for connection in self._open:
                # What has arrived can still be read, and answered. Not SSLSocket's own method,
                # after which the answer would go out in the clear.
                with suppress(OSError):
                    socket.socket.shutdown(connection, socket.SHUT_RD)
            self._changed.wait_for(lambda: not self._open, grace_s)

    def _crowd(self, peer: str) -> list[Connection]:
        """The connections of which one has to give way to a new one of that peer."""
        of_peer = [one for one in self._open.values() if one.peer == peer]
        if len(of_peer) >= self._limits.per_peer:
            return of_peer
        return list(self._open.values()) if len(self._open) >= self._limits.connections else []

    def _has_ended(self, victim: Connection) -> Callable[[], bool]:
        return lambda: victim.socket not in self._open


def peer_of(address: str) -> str:
    """Peer to which an address is counted: one host often has a whole /64 network of IPv6."""
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is not None:
            return str(found.ipv4_mapped)
        return str(ipaddress.IPv6Network((int(found), 64), strict=False))
    return str(found)
