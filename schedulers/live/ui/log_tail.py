"""The end of a job's log, fetched behind the page's back: a node may take its time to answer."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from concurrent.futures import wait as wait_for

from presage.errors import PresageError
from presage.schedulers.live.ui.cached_value import Seen

TAIL_BYTES = 24 * 1024
MOST_LINES = 200
FRESH_S = 2.0
WAIT_S = 0.7  # that the page waits for it
# What terminals are told: colours, titles, and where to write.
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class LogTail:
    """The end of the log of one attempt of a job.

    Parameters
    ----------
    ask : callable
        The log from an offset on, in pieces; a negative offset is from its end.
    """

    def __init__(self, ask: Callable[[int], Iterator[bytes]], threads: Executor) -> None:
        self._ask, self._threads = ask, threads
        self._seen: Seen[str] = Seen()
        self._asked_s = -float("inf")
        self._asking: Future[None] | None = None

    def read(self) -> Seen[str]:
        """What there is by now."""
        idle = self._asking is None or self._asking.done()
        if idle and time.monotonic() - self._asked_s > FRESH_S:
            self._asked_s = time.monotonic()
            self._asking = self._threads.submit(self._fetch)
            wait_for([self._asking], WAIT_S)  # most answer at once
        return self._seen

    def _fetch(self) -> None:
        try:
            content = b""
            for piece in self._ask(-TAIL_BYTES):
                content += piece
                if len(content) >= 2 * TAIL_BYTES:  # it is written faster than it is read
                    break
            if content or not self._seen.found:
                self._seen = Seen(last_lines(content), time.time())
            else:  # its node may keep it no longer than the job
                self._seen = Seen(self._seen.found, self._seen.at_unix_s)
        except PresageError as error:
            since = self._seen.since_unix_s or time.time()
            self._seen = Seen(self._seen.found, self._seen.at_unix_s, str(error), since)


def last_lines(content: bytes) -> str:
    """Lines as a terminal would leave them: of one that was written anew, the last state."""
    content = content[-TAIL_BYTES:]
    text = _ESCAPES.sub("", content.decode(errors="replace")).replace("\r\n", "\n")
    lines = text.split("\n")
    if len(content) == TAIL_BYTES:  # the first of them has no beginning
        lines = lines[1:] or lines
    shown = (line.rstrip("\r").rpartition("\r")[2] for line in lines[-MOST_LINES - 1 :])
    return "\n".join(_CONTROLS.sub("�", line) for line in shown)
