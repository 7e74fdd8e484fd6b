"""Connections of a server: bounded in number, for each host and in all.

gRPC accepts every connection and tells nothing of those that have no calls. So when this process
has many files open, its connected sockets are looked up by /proc, and while a host or all hosts
have too many, those that were not used for longest are shut down; gRPC sees them end, and an honest
client connects again.
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

MOST_OF_A_HOST = 2_000
MOST_IN_ALL = 8_000
_MOST_FILES = 65_536  # what a server asks for, if it may have as many
_CHECK_S = 1.0
_FD = "/proc/self/fd"


def raise_file_limit() -> int:
    """Let this process open as many files as it may, up to 65,536; return how many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            return wanted
    return soft if soft != resource.RLIM_INFINITY else _MOST_FILES


class Connection(NamedTuple):
    """A connected socket of this process, by its file descriptor."""

    descriptor: int
    host: str
    peer: str  # as gRPC calls it


class Connections:
    """Connections to a port of this process.

    Parameters
    ----------
    port : callable
        Returns the port, once it is known.
    most : int
        Connections in all. Fewer where this process may not open so many files.
    """

    def __init__(
        self,
        port: Callable[[], int],
        *,
        most_of_a_host: int = MOST_OF_A_HOST,
        most: int = MOST_IN_ALL,
    ) -> None:
        self._port = port
        self._most_of_a_host = most_of_a_host
        self._most = min(most, raise_file_limit() * 3 // 4)
        self._used_s: dict[str, float] = {}  # by peer, when a call of it was admitted last
        self._seen_s: dict[str, float] = {}  # by peer, when it was first seen

    def is_used(self, peer: str) -> None:
        """Note that a call was admitted."""
        self._used_s[peer] = time.monotonic()

    async def run(self) -> None:
        """Bound the connections again and again, until cancelled."""
        while True:
            await asyncio.sleep(_CHECK_S)
            if self._is_crowded():
                await asyncio.to_thread(self.bound)
            else:
                self._used_s.clear()
                self._seen_s.clear()

    def bound(self) -> int:
        """Shut down what is too much; return how many connections that is.

        One that was first seen by this very check is left: its first call may be on its way.
        """
        now_s = time.monotonic()
        found = tuple(connections(self._port()))
        peers = {one.peer for one in found}
        new = peers - self._seen_s.keys()
        self._seen_s = {peer: self._seen_s.get(peer, now_s) for peer in peers}
        self._used_s = {peer: s for peer, s in tuple(self._used_s.items()) if peer in peers}
        of_host = defaultdict(list)
        for one in found:
            of_host[one.host].append(one)
        excess = {
            one for there in of_host.values() for one in self._least(there, self._most_of_a_host)
        }
        excess |= set(self._least([one for one in found if one not in excess], self._most))
        closed = [one for one in excess if one.peer not in new]
        for one in closed:
            _shut_down(one)
        return len(closed)

    def _is_crowded(self) -> bool:
        try:
            return len(os.listdir(_FD)) > min(self._most_of_a_host, self._most)  # noqa: PTH208
        except OSError:  # no /proc, or no descriptor left to read it with
            return False

    def _least(self, there: Sequence[Connection], most: int) -> Sequence[Connection]:
        """Return the connections above a number: never used ones first, then by last use."""
        excess = len(there) - most
        if excess <= 0:
            return ()

        def last_use(one: Connection) -> tuple[float, float]:
            return self._used_s.get(one.peer, 0.0), self._seen_s[one.peer]

        return sorted(there, key=last_use)[:excess]


def connections(port: int) -> Iterator[Connection]:
    """Yield this process's connected TCP sockets of a local port."""
    with os.scandir(_FD) as entries:
        descriptors = [int(entry.name) for entry in entries]
    for descriptor in descriptors:
        with suppress(OSError):
            if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                continue
            with socket.socket(fileno=os.dup(descriptor)) as opened:
                if opened.family in (socket.AF_INET, socket.AF_INET6):
                    yield from _of_port(opened, descriptor, port)


def _of_port(opened: socket.socket, descriptor: int, port: int) -> Iterator[Connection]:
    if opened.getsockname()[1] == port:
        host, of_peer = opened.getpeername()[:2]  # of a listening socket an OSError
        is_mapped = host.startswith("::ffff:")
        host = host.removeprefix("::ffff:")
        shown = f"ipv4:{host}" if is_mapped or ":" not in host else f"ipv6:{quote(f'[{host}]')}"
        yield Connection(descriptor, host, f"{shown}:{of_peer}")


def _shut_down(one: Connection) -> None:
    """Shut a connection down, unless its descriptor is another file by now."""
    with suppress(OSError), socket.socket(fileno=os.dup(one.descriptor)) as opened:
        host, port = opened.getpeername()[:2]
        if host.removeprefix("::ffff:") == one.host and one.peer.endswith(f":{port}"):
            opened.shutdown(socket.SHUT_RDWR)
