"""End of a job's log, fetched in the background: a node may respond slowly."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from concurrent.futures import wait as wait_for

from presage.errors import PresageError
from presage.schedulers.live.ui.cached_value import Snapshot

TAIL_BYTES = 24 * 1024
MAX_LINES = 200
MAX_AGE_S = 2.0
FETCH_WAIT_S = 0.7  # limit of the wait of a page
# Control sequences of terminals: colours, titles, cursor positions.
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class LogTail:
    """End of the log of one attempt of a job.

    Parameters
    ----------
    read_log : callable
        Returns the log from an offset on, in chunks; a negative offset counts from the end.
    """

    def __init__(self, read_log: Callable[[int], Iterator[bytes]], threads: Executor) -> None:
        self._read_log, self._threads = read_log, threads
        self._snapshot: Snapshot[str] = Snapshot()
        self._fetched_s = -float("inf")
        self._fetching: Future[None] | None = None

    def read(self) -> Snapshot[str]:
        """Return the end of the log; fetch it again if it is due."""
        idle = self._fetching is None or self._fetching.done()
        if idle and time.monotonic() - self._fetched_s > MAX_AGE_S:
            self._fetched_s = time.monotonic()
            self._fetching = self._threads.submit(self._fetch)
            wait_for([self._fetching], FETCH_WAIT_S)  # most nodes respond at once
        return self._snapshot

    def _fetch(self) -> None:
        try:
            content = b""
            for chunk in self._read_log(-TAIL_BYTES):
                content += chunk
                if len(content) >= 2 * TAIL_BYTES:  # the log grows faster than it is read
                    break
            if content or not self._snapshot.value:
                self._snapshot = Snapshot(last_lines(content), time.time())
            else:  # the node may have removed the log with the job
                self._snapshot = Snapshot(self._snapshot.value, self._snapshot.at_unix_s)
        except PresageError as error:
            since = self._snapshot.failing_since_unix_s or time.time()
            last = self._snapshot
            self._snapshot = Snapshot(last.value, last.at_unix_s, str(error), since)


def last_lines(content: bytes) -> str:
    """Return the last lines as a terminal shows them: of a rewritten line, the last state."""
    content = content[-TAIL_BYTES:]
    text = _ESCAPES.sub("", content.decode(errors="replace")).replace("\r\n", "\n")
    lines = text.split("\n")
    if len(content) == TAIL_BYTES:  # the first line is cut
        lines = lines[1:] or lines
    shown = (line.rstrip("\r").rpartition("\r")[2] for line in lines[-MAX_LINES - 1 :])
    return "\n".join(_CONTROLS.sub("�", line) for line in shown)
