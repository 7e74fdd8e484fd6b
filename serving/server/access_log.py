"""Access log: one JSON line per call in the format of the log, written in batches.

The logging package flushes every line, which costs as much as a small call. Here a thread formats
and writes some hundred lines at a time. A slow reader of the log delays no call; lines that exceed
the queue are dropped.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from queue import Full, Queue
from typing import NamedTuple

FLUSH_S = 0.1
MAX_PENDING_BATCHES = 64  # the lines of some seconds
# Largest atomic write to a pipe that several processes share (PIPE_BUF).
ATOMIC_WRITE_BYTES = 4096


class EndedCall(NamedTuple):
    """Ended call. ``request_id`` contains only letters, digits, ".", "_" and "-"."""

    ended_unix_s: float
    method: str
    code: str
    seconds: float
    rows: int
    request_bytes: int
    client: str
    request_id: str

    def line(self) -> str:
        """Return the call as a line of JSON."""
        millis = int(self.ended_unix_s % 1 * 1000)
        return (
            f'{{"time": "{_second(int(self.ended_unix_s))}.{millis:03d}+00:00", "level": "info",'
            f' "event": "call", "method": "{self.method}", "code": "{self.code}",'
            f' "ms": {1e3 * self.seconds:.3f}, "rows": {self.rows},'
            f' "request_bytes": {self.request_bytes}, "client": {_quoted(self.client)},'
            f' "request_id": "{self.request_id}"}}\n'
        )


def write_to_stderr(text: str) -> None:
    """Write to standard error without Python's buffer.

    A thread that blocks while it holds the lock of that buffer would keep the process from ending.
    """
    os.write(sys.stderr.fileno(), text.encode())


class AccessLog:
    """Access log that writes each line within ``FLUSH_S`` of the end of its call.

    Parameters
    ----------
    write : callable
        Writes lines that together fit into one atomic write.
    on_dropped : callable
        Called with the number of lines that were dropped.
    """

    def __init__(
        self,
        write: Callable[[str], object] = write_to_stderr,
        on_dropped: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._write_lines = write
        self._on_dropped = on_dropped
        self._ended: list[EndedCall] = []
        self._waiting: Queue[Sequence[EndedCall] | None] = Queue(MAX_PENDING_BATCHES)
        # A daemon thread: it may block on a pipe that is never read.
        self._writer = threading.Thread(target=self._write, name="access-log", daemon=True)
        self._writer.start()

    def record(self, call: EndedCall) -> None:
        """Add a line for a call."""
        if not self._ended:
            asyncio.get_running_loop().call_later(FLUSH_S, self.flush)
        self._ended.append(call)

    def flush(self) -> None:
        """Pass the recorded calls to the writer thread."""
        ended, self._ended = self._ended, []
        try:
            if ended:
                self._waiting.put_nowait(ended)
        except Full:
            self._on_dropped(len(ended))

    def close(self, wait_s: float = 1.0) -> None:
        """Write the remaining lines, waiting at most ``wait_s``."""
        self.flush()
        try:
            self._waiting.put_nowait(None)
        except Full:
            return
        self._writer.join(wait_s)

    def _write(self) -> None:
        while (ended := self._waiting.get()) is not None:
            try:
                for text in join_lines(call.line() for call in ended):
                    self._write_lines(text)
            except (OSError, ValueError):  # full disk, broken pipe, closed stream
                self._on_dropped(len(ended))
            self._waiting.task_done()


def join_lines(lines: Iterable[str]) -> Iterator[str]:
    """Join lines into texts that each fit into one atomic write."""
    piece = ""
    for line in lines:  # ASCII: one byte per character
        if piece and len(piece) + len(line) > ATOMIC_WRITE_BYTES:
            yield piece
            piece = ""
        piece += line
    if piece:
        yield piece


@lru_cache(maxsize=2)
def _second(unix_s: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(unix_s))


@lru_cache(maxsize=1024)
def _quoted(client: str) -> str:
    return json.dumps(client)
