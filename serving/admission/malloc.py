"""What glibc does with memory that is freed; where another library does, nothing is done."""

from __future__ import annotations

import asyncio
import ctypes
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

QUIET_S = 10.0
SOON_S = 0.1  # after a request that ended unread
# Of <malloc.h>.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_MOST_ARENAS = 2  # by itself glibc makes eight for each core, each with gaps of its own
_KEPT_BYTES = 32 * 1024 * 1024
_LARGEST_BYTES = 16 * 1024 * 1024  # of one piece; the largest message and its feature rows take 6


def keep_freed_memory() -> None:
    """Keep what large requests need for the next ones.

    By itself glibc gives every piece above 128 KiB back to the kernel, which clears each page
    again when it is next touched: half of what a request of a thousand rows costs (decision 22).
    At the end of each arena up to 32 MiB stay this process's; what is freed before something that
    is still in use does so with and without this, until :func:`trim`.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, _MOST_ARENAS)
        mallopt(_M_MMAP_THRESHOLD, _LARGEST_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)


def trim() -> None:
    """Give every free page back to the kernel."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)


class _Mallinfo2(ctypes.Structure):
    """struct mallinfo2 of <malloc.h>, since glibc 2.33."""

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
    """Return how much memory is allocated and not freed; resident memory without glibc 2.33."""
    read = _mallinfo2()
    if read is not None:
        info = read()
        return int(info.uordblks + info.hblkhd)
    try:
        pages = Path("/proc/self/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


class FreedMemory:
    """Given back once no large request has come for ``QUIET_S``.

    What requests took that ended unread goes back every ``SOON_S``, also while more of them come: a
    flood would otherwise fill the gaps of one arena after the other. Of hundreds of MiB it takes a
    tenth of a second, so it is done beside the event loop.
    """

    def __init__(self, give_back: Callable[[], object] = trim) -> None:
        self._give_back = give_back
        self._when_quiet: asyncio.TimerHandle | None = None
        self._soon: asyncio.TimerHandle | None = None

    def used(self) -> None:
        """Give back after ``QUIET_S``: a large request has been answered, or refused."""
        if self._when_quiet is not None:
            self._when_quiet.cancel()
        loop = asyncio.get_running_loop()
        self._when_quiet = loop.call_later(QUIET_S, loop.run_in_executor, None, self._give_back)

    def unread(self) -> None:
        """Give back soon, and again when quiet: a request has ended unread."""
        self.used()
        if self._soon is None:
            self._soon = asyncio.get_running_loop().call_later(SOON_S, self._give_back_now)

    def _give_back_now(self) -> None:
        self._soon = None
        asyncio.get_running_loop().run_in_executor(None, self._give_back)

    def close(self) -> None:
        """Nothing is given back any more."""
        for timer in (self._when_quiet, self._soon):
            if timer is not None:
                timer.cancel()
