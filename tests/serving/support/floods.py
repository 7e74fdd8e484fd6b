"""Floods of unfinished messages, and the memory that they cost a server."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from tests.serving.support.http2 import PREDICT, Connection

MIB = 2**20


def resident_bytes(pid: int) -> int:
    """Return a process's resident memory."""
    rows = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(row.split()[1]) * 1024 for row in rows if row.startswith("VmRSS"))


def growth_under_unfinished_bytes(
    pid: int,
    port: int,
    ask: Callable[[], object],
    *,
    method: str = PREDICT,
    ca: Path | None = None,
    connections: int = 25,
    messages: int = 250,
    message_bytes: int = 4 * MIB,
) -> int:
    """Return the growth of a server's memory while messages arrive without their last bytes.

    Their calls have no token. ``ask`` is an honest client's request, made meanwhile and after.
    """
    ask()
    idle_bytes = resident_bytes(pid)
    peaks, done = [idle_bytes], threading.Event()

    def watch() -> None:
        while not done.wait(0.005):
            peaks.append(resident_bytes(pid))

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        with ExitStack() as stack:
            opened = [Connection(port, ca) for _ in range(connections)]
            for one in opened:
                stack.callback(one.close)
            arguments = (message_bytes - 1, message_bytes - 100, 2.0)
            sending = [
                threading.Thread(target=one.message, args=(one.call(method), *arguments))
                for one in opened
                for _ in range(messages // connections)
            ]
            for thread in sending:
                thread.start()
            for _ in range(50):
                ask()
            for thread in sending:
                thread.join()
    finally:
        done.set()
        watching.join()
    ask()
    return max(peaks) - idle_bytes
