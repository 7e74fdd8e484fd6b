"""Limits on the number of a server's connections, per client host and in total.

gRPC accepts every connection and does not report connections without calls. When this process has
many open files, the connected sockets are listed from /proc. While one host or all hosts together
exceed their limit, the least recently used connections are shut down. gRPC then sees the connection
end, and a well-behaved client connects again.
"""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import stat
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple
from urllib.parse import quote

MAX_CONNECTIONS_PER_HOST = 2_000
MAX_CONNECTIONS = 8_000
_MAX_FILES = 65_536  # open files that a server requests, if the hard limit permits them
_CHECK_S = 1.0  # minimum interval between two checks
_MAX_CHECKING_SHARE = 0.02  # of the time: a check of 10,000 connections takes 0.1 s
_MAX_CHECK_S = 10.0  # maximum interval, also after a check that waited for a thread
_FD = "/proc/self/fd"


def raise_file_limit() -> int:
    """Raise the limit on open files to the hard limit, at most 65,536; return the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = _MAX_FILES if hard == resource.RLIM_INFINITY else min(hard, _MAX_FILES)
    if soft != resource.RLIM_INFINITY and soft < limit:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
            return limit
    return soft if soft != resource.RLIM_INFINITY else _MAX_FILES


class Connection(NamedTuple):
    """Connected socket of this process."""

    descriptor: int
    host: str
    peer: str  # in gRPC's notation


class Connections:
    """Connections to a port of this process, and the limits on their number.

    Parameters
    ----------
    port : callable
        Returns the port. Called only while the server runs.
    max_per_host : int
        Limit for one client host.
    max_connections : int
        Limit for all hosts together; lowered to 3/4 of the limit on open files.
    """

    def __init__(
        self,
        port: Callable[[], int],
        *,
        max_per_host: int = MAX_CONNECTIONS_PER_HOST,
        max_connections: int = MAX_CONNECTIONS,
    ) -> None:
        self._port = port
        self._max_per_host = max_per_host
        self._max_connections = min(max_connections, raise_file_limit() * 3 // 4)
        self._used_s: dict[str, float] = {}  # by peer: time of its last admitted call
        self._first_seen_s: dict[str, float] = {}  # by peer: time of the first check that saw it

    def mark_used(self, peer: str) -> None:
        """Record that a call was admitted on the connection of a peer."""
        self._used_s[peer] = time.monotonic()

    async def run(self) -> None:
        """Enforce the limits periodically until cancelled."""
        took_s = 0.0
        while True:
            await asyncio.sleep(min(max(_CHECK_S, took_s / _MAX_CHECKING_SHARE), _MAX_CHECK_S))
            began_s = time.monotonic()
            if self._has_many_files():
                await asyncio.to_thread(self.enforce_limits)
            else:
                self._used_s.clear()
                self._first_seen_s.clear()
            took_s = time.monotonic() - began_s

    def enforce_limits(self) -> int:
        """Shut down the connections above the limits; return their number.

        A connection that this check sees for the first time stays open: its first call may be on
        its way.
        """
        now_s = time.monotonic()
        found = tuple(connections(self._port()))
        peers = {connection.peer for connection in found}
        new = peers - self._first_seen_s.keys()
        self._first_seen_s = {peer: self._first_seen_s.get(peer, now_s) for peer in peers}
        self._used_s = {peer: s for peer, s in tuple(self._used_s.items()) if peer in peers}
        by_host = defaultdict(list)
        for connection in found:
            by_host[connection.host].append(connection)
        excess = {
            connection
            for of_host in by_host.values()
            for connection in self._least_used(of_host, self._max_per_host)
        }
        remaining = [connection for connection in found if connection not in excess]
        excess |= set(self._least_used(remaining, self._max_connections))
        closed = [connection for connection in excess if connection.peer not in new]
        for connection in closed:
            _shut_down(connection)
        return len(closed)

    def _has_many_files(self) -> bool:
        try:
            open_files = len(os.listdir(_FD))  # noqa: PTH208
        except OSError:  # no /proc, or no free descriptor to read it with
            return False
        return open_files > min(self._max_per_host, self._max_connections)

    def _least_used(self, found: Sequence[Connection], limit: int) -> Sequence[Connection]:
        """Return the connections above a limit: unused ones first, then by last use."""
        excess = len(found) - limit
        if excess <= 0:
            return ()

        def last_use(connection: Connection) -> tuple[float, float]:
            peer = connection.peer
            return self._used_s.get(peer, 0.0), self._first_seen_s[peer]

        return sorted(found, key=last_use)[:excess]


def connections(port: int) -> Iterator[Connection]:
    """Yield the connected TCP sockets of this process at a local port."""
    with os.scandir(_FD) as entries:
        descriptors = [int(entry.name) for entry in entries]
    for descriptor in descriptors:
        with suppress(OSError):
            if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                continue
            with socket.socket(fileno=os.dup(descriptor)) as opened:
                if opened.family in (socket.AF_INET, socket.AF_INET6):
                    yield from _connection_on_port(opened, descriptor, port)


def _connection_on_port(opened: socket.socket, descriptor: int, port: int) -> Iterator[Connection]:
    if opened.getsockname()[1] == port:
        host, peer_port = opened.getpeername()[:2]  # raises OSError for a listening socket
        is_mapped = host.startswith("::ffff:")
        host = host.removeprefix("::ffff:")
        address = f"ipv4:{host}" if is_mapped or ":" not in host else f"ipv6:{quote(f'[{host}]')}"
        yield Connection(descriptor, host, f"{address}:{peer_port}")


def _shut_down(connection: Connection) -> None:
    """Shut a connection down, unless its descriptor refers to another file by now."""
    with suppress(OSError), socket.socket(fileno=os.dup(connection.descriptor)) as opened:
        host, port = opened.getpeername()[:2]
        is_same_host = host.removeprefix("::ffff:") == connection.host
        if is_same_host and connection.peer.endswith(f":{port}"):
            opened.shutdown(socket.SHUT_RDWR)
