"""What glibc does with memory that is freed."""

from __future__ import annotations

import ctypes

# Of <malloc.h>.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEPT_BYTES = 32 * 1024 * 1024
_LARGEST_BYTES = 16 * 1024 * 1024  # of one piece; the largest message and its feature rows take 6


def keep_freed_memory() -> None:
    """Keep what large requests need for the next ones; does nothing without glibc.

    By itself glibc gives every piece above 128 KiB back to the kernel, which clears each page
    again when it is next touched: half of what a request of a thousand rows costs (decision 22).
    At the end of each arena up to 32 MiB stay this process's; what is freed before something that
    is still in use does so with and without this.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGEST_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
