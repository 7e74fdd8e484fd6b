"""Table of a server's open connections, with limits in total and per peer."""

from __future__ import annotations

import ipaddress
import socket
import threading
from collections.abc import Callable
from contextlib import suppress

from presage.serving.http.connection import Connection, HttpLimits

_EVICTION_S = 1.0  # maximum wait for the thread of an evicted connection to end


class Connections:
    """Table of open connections; at a limit the one with the least progress is evicted."""

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
        """Add a connection; return False if it exceeds a limit and no other can be evicted."""
        peer = peer_key(address)
        with self._changed:
            while candidates := self._eviction_candidates(peer):
                victim = min(
                    (candidate for candidate in candidates if candidate.can_be_evicted),
                    key=lambda candidate: candidate.progress,
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
        """Remove a closed connection."""
        with self._changed:
            self._open.pop(connection, None)
            self._changed.notify_all()

    def drain(self, grace_s: float) -> None:
        """Stop receiving on all connections; wait until requests are answered and closed."""
        with self._changed:
            for connection in self._open:
                # Requests that have arrived are still answered. After SSLSocket's own method the
                # response would be sent unencrypted.
                with suppress(OSError):
                    socket.socket.shutdown(connection, socket.SHUT_RD)
            self._changed.wait_for(lambda: not self._open, grace_s)

    def _eviction_candidates(self, peer: str) -> list[Connection]:
        """Return the connections of which one must be evicted for a new one of the peer."""
        of_peer = [one for one in self._open.values() if one.peer == peer]
        if len(of_peer) >= self._limits.per_peer:
            return of_peer
        return list(self._open.values()) if len(self._open) >= self._limits.connections else []

    def _has_ended(self, victim: Connection) -> Callable[[], bool]:
        return lambda: victim.socket not in self._open


def peer_key(address: str) -> str:
    """Return the peer that an address counts towards.

    An IPv6 address counts as its /64 network, because one host often has a whole /64 network.
    """
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is not None:
            return str(found.ipv4_mapped)
        return str(ipaddress.IPv6Network((int(found), 64), strict=False))
    return str(found)
