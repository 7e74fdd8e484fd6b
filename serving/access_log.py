"""A line for every call, as JSON like those of the log, written some at a time.

A line by the logging package, with its flush, costs as much as a small call's answer.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from functools import lru_cache
from typing import TextIO

FLUSH_S = 0.1
# What one write may have to be one to a pipe that several processes share (PIPE_BUF).
_WHOLE_BYTES = 4096


class AccessLog:
    """Lines are written within ``FLUSH_S`` of their call's end, by the running event loop."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._lines: list[str] = []

    def note(
        self, *, method: str, code: str, seconds: float, rows: int, request_bytes: int,
        client: str, request_id: str,
    ) -> None:  # fmt: skip
        """A call that has ended. ``request_id`` is one of ours or looks like one."""
        if not self._lines:
            asyncio.get_running_loop().call_later(FLUSH_S, self.flush)
        now_s = time.time()
        self._lines.append(
            f'{{"time": "{_second(int(now_s))}.{int(now_s % 1 * 1000):03d}+00:00", "level": "info",'
            f' "event": "call", "method": "{method}", "code": "{code}", "ms": {1e3 * seconds:.3f},'
            f' "rows": {rows}, "request_bytes": {request_bytes}, "client": {_quoted(client)},'
            f' "request_id": "{request_id}"}}\n'
        )

    def flush(self) -> None:
        """Write what is noted; where that fails, the calls go on."""
        lines, self._lines = self._lines, []
        try:
            for whole in _pieces(lines):
                self._stream.write(whole)
                self._stream.flush()
        except (OSError, ValueError):  # a full disk, a reader that left, a stream that was closed
            pass


def _pieces(lines: list[str]) -> list[str]:
    """The lines joined, of several each as many as one write takes whole."""
    pieces: list[str] = []
    size = _WHOLE_BYTES
    for line in lines:  # of ASCII: a character is a byte
        size += len(line)
        if size > _WHOLE_BYTES:
            pieces.append("")
            size = len(line)
        pieces[-1] += line
    return pieces


@lru_cache(maxsize=2)
def _second(unix_s: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(unix_s))


@lru_cache(maxsize=1024)
def _quoted(client: str) -> str:
    return json.dumps(client)
