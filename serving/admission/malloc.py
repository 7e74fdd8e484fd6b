"""Settings of glibc's malloc for freed memory; without glibc all functions do nothing."""

from __future__ import annotations

import asyncio
import ctypes
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

IDLE_S = 10.0
SOON_S = 0.1  # after a request that ended before it was received
# Constants of <malloc.h>.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_MAX_ARENAS = 2  # glibc's default is eight per core, and each arena is fragmented separately
_TRIM_THRESHOLD_BYTES = 32 * 1024 * 1024
# The largest message with its feature rows takes 6 MiB.
_MMAP_THRESHOLD_BYTES = 16 * 1024 * 1024


def tune_malloc() -> None:
    """Keep memory that large requests have freed for the next ones.

    By default glibc returns every block above 128 KiB to the kernel, which clears each page again
    on the next access. That is half of the cost of a request of a thousand rows (decision 22).
    With these settings up to 32 MiB stay at the end of each arena. Freed memory that lies before
    memory in use stays with the process in both cases, until :func:`trim`.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, _MAX_ARENAS)
        mallopt(_M_MMAP_THRESHOLD, _MMAP_THRESHOLD_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _TRIM_THRESHOLD_BYTES)


def trim() -> None:
    """Return all free pages to the kernel."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)


class _Mallinfo2(ctypes.Structure):
    """``struct mallinfo2`` of <malloc.h>, available since glibc 2.33."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks",
            "fordblks", "keepcost",
        )
    )  # fmt: skip


@cache
def _mallinfo2() -> Callable[[], _Mallinfo2] | None:
    found = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if found is not None:
        found.restype = _Mallinfo2
    return found


def in_use_bytes() -> int:
    """Return the allocated bytes of this process; its resident bytes before glibc 2.33."""
    read = _mallinfo2()
    if read is not None:
        info = read()
        return int(info.uordblks + info.hblkhd)
    try:
        pages = Path("/proc/self/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


class MemoryTrimmer:
    """Timer that returns freed memory to the kernel.

    Memory is returned once no large request has arrived for ``IDLE_S``. Memory of requests that
    ended before they were received is returned every ``SOON_S``, even while more of them arrive: a
    flood would otherwise fill the gaps of all arenas. Returning hundreds of MiB takes 0.1 s, so it
    runs in a thread outside the event loop.
    """

    def __init__(self, trim: Callable[[], object] = trim) -> None:
        self._trim = trim
        self._idle_timer: asyncio.TimerHandle | None = None
        self._soon_timer: asyncio.TimerHandle | None = None

    def trim_when_idle(self) -> None:
        """Return memory after ``IDLE_S``; called when a large request was answered or rejected."""
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        loop = asyncio.get_running_loop()
        self._idle_timer = loop.call_later(IDLE_S, loop.run_in_executor, None, self._trim)

    def trim_soon(self) -> None:
        """Return memory after ``SOON_S`` and when idle; called when a request was not received."""
        self.trim_when_idle()
        if self._soon_timer is None:
            self._soon_timer = asyncio.get_running_loop().call_later(SOON_S, self._trim_now)

    def _trim_now(self) -> None:
        self._soon_timer = None
        asyncio.get_running_loop().run_in_executor(None, self._trim)

    def close(self) -> None:
        """Cancel both timers."""
        for timer in (self._idle_timer, self._soon_timer):
            if timer is not None:
                timer.cancel()
