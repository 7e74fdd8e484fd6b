"""A line for every call, as JSON like those of the log, written some at a time.

A line by the logging package, with its flush, costs as much as a small call's answer. Lines are
put together and written by a thread, some hundred one after another: whoever does not read them
holds no call up, and loses those that do not fit.
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
MOST_WAITING = 64  # times that lines were handed over: some seconds' worth
# What one write may have to be one to a pipe that several processes share (PIPE_BUF).
WHOLE_BYTES = 4096


class EndedCall(NamedTuple):
    """A call that has ended. ``request_id`` is one of ours or looks like one."""

    ended_unix_s: float
    method: str
    code: str
    seconds: float
    rows: int
    request_bytes: int
    client: str
    request_id: str

    def line(self) -> str:
        """As JSON."""
        millis = int(self.ended_unix_s % 1 * 1000)
        return (
            f'{{"time": "{_second(int(self.ended_unix_s))}.{millis:03d}+00:00", "level": "info",'
            f' "event": "call", "method": "{self.method}", "code": "{self.code}",'
            f' "ms": {1e3 * self.seconds:.3f}, "rows": {self.rows},'
            f' "request_bytes": {self.request_bytes}, "client": {_quoted(self.client)},'
            f' "request_id": "{self.request_id}"}}\n'
        )


def to_standard_error(text: str) -> None:
    """Past Python's own buffer: a thread that waits with its lock would not let the process end."""
    os.write(sys.stderr.fileno(), text.encode())


class AccessLog:
    """Lines are written within ``FLUSH_S`` of their call's end, by the running event loop's time.

    Parameters
    ----------
    dropped : callable
        Told how many lines were not written, for which there was no room.
    """

    def __init__(
        self,
        write: Callable[[str], object] = to_standard_error,
        dropped: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._write_whole = write
        self._dropped = dropped
        self._ended: list[EndedCall] = []
        self._waiting: Queue[Sequence[EndedCall] | None] = Queue(MOST_WAITING)
        # A daemon: it may wait for a reader that never comes.
        self._writer = threading.Thread(target=self._write, name="access-log", daemon=True)
        self._writer.start()

    def note(self, call: EndedCall) -> None:
        """Write a line of this call."""
        if not self._ended:
            asyncio.get_running_loop().call_later(FLUSH_S, self.flush)
        self._ended.append(call)

    def flush(self) -> None:
        """Hand over what is noted."""
        ended, self._ended = self._ended, []
        try:
            if ended:
                self._waiting.put_nowait(ended)
        except Full:
            self._dropped(len(ended))

    def close(self, wait_s: float = 1.0) -> None:
        """Write what is noted, if somebody reads it in time."""
        self.flush()
        try:
            self._waiting.put_nowait(None)
        except Full:
            return
        self._writer.join(wait_s)

    def _write(self) -> None:
        while (ended := self._waiting.get()) is not None:
            try:
                for whole in pieces(call.line() for call in ended):
                    self._write_whole(whole)
            except (OSError, ValueError):  # a full disk, a reader that left, a closed stream
                self._dropped(len(ended))
            self._waiting.task_done()


def pieces(lines: Iterable[str]) -> Iterator[str]:
    """The lines joined, of several each as many as one write takes whole."""
    piece = ""
    for line in lines:  # of ASCII: a character is a byte
        if piece and len(piece) + len(line) > WHOLE_BYTES:
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
