"""Attacks on an HTTP server from outside, over real sockets, and what they cost its process."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

from tests.support.waiting import wait_until

MOST_MIB = 150.0  # above idle, under any of these
HEAD = b"GET /healthz HTTP/1.1\r\nHost: x\r\n"


def memory_mib(pid: int) -> float:
    """Resident memory of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


def threads(pid: int) -> int:
    """Threads of a process."""
    return int(Path(f"/proc/{pid}/status").read_text().split("Threads:")[1].split()[0])


def connect(url: str) -> socket.socket:
    """A connection of the attacker's: it waits for nothing."""
    where = urlsplit(url)
    found = socket.create_connection((where.hostname or "", where.port or 80), timeout=10)
    found.settimeout(1)
    return found


@contextmanager
def idle_connections(url: str, count: int) -> Iterator[None]:
    """Connections that say nothing."""
    with ExitStack() as stack:
        for _ in range(count):
            stack.enter_context(connect(url))
        yield


@contextmanager
def slow_connections(url: str, count: int) -> Iterator[None]:
    """Connections that send one byte a second of a head that never ends."""
    ended = threading.Event()
    with ExitStack() as stack:
        opened = [stack.enter_context(connect(url)) for _ in range(count)]
        for one in opened:
            with suppress(OSError):
                one.sendall(HEAD)

        def drip() -> None:
            while not ended.wait(1.0):
                for one in opened:
                    with suppress(OSError):
                        one.sendall(b"x")

        dripping = threading.Thread(target=drip)
        dripping.start()
        try:
            yield
        finally:
            ended.set()
            dripping.join()


@contextmanager
def half_sent_bodies(
    url: str, path: str, count: int, length: int, *, headers: str = "", part: bytes = b" " * 2**20
) -> Iterator[None]:
    """Bodies of that length in bytes, of which half is sent; the connections are held open."""
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n{headers}\r\n".encode()
    with ExitStack() as stack:
        for _ in range(count):
            one = stack.enter_context(connect(url))
            with suppress(OSError):  # it was refused
                one.sendall(head)
                for _ in range(0, length // 2, len(part)):
                    one.sendall(part)
        yield


class Watch:
    """The most memory that a process had, and the most threads, while ``with`` lasted."""

    def __init__(self, pid: int) -> None:
        self._pid, self._ended = pid, threading.Event()
        self.idle_mib = self.most_mib = memory_mib(pid)
        self.most_threads = threads(pid)
        self._watching = threading.Thread(target=self._look)

    @property
    def added_mib(self) -> float:
        """Above what it had before."""
        return self.most_mib - self.idle_mib

    def __enter__(self) -> Watch:
        self._watching.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._watching.join()

    def _look(self) -> None:
        while not self._ended.wait(0.02):
            self.most_mib = max(self.most_mib, memory_mib(self._pid))
            self.most_threads = max(self.most_threads, threads(self._pid))


def until(holds: Callable[[], bool], what: str, limit_s: float = 60.0) -> None:
    """Wait until it is so."""
    wait_until(holds, limit_s, what)
