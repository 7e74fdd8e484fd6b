"""Safe opening of files that a job may have replaced.

A job can put anything in the place of a file that it may write to: a FIFO, whose opening waits for
a writer, a symbolic link to another user's file, a device, a folder, a sparse file of
terabytes. Opening such a file here never blocks, follows no link and reads a bounded size. The
module imports the standard library only, because jobs use it too.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

# O_NONBLOCK also for a regular file: a lease of fcntl(2) on it would make its opening wait.
_SAFE = 0
for _name in ("O_NONBLOCK", "O_NOFOLLOW", "O_CLOEXEC", "O_NOCTTY"):
    _SAFE |= getattr(os, _name, 0)  # not all systems that a job may run on have them


def open_regular(path: Path, flags: int = os.O_RDONLY, mode: int = 0o600) -> int:
    """Open a regular file, as os.open; the caller closes the descriptor.

    Raises
    ------
    OSError
        As os.open; ``EINVAL`` for anything but a regular file, ``ELOOP`` for a symbolic link.
    """
    try:
        _check(os.lstat(path), path)  # opening a device may already do something to it
    except FileNotFoundError:
        if not flags & os.O_CREAT:
            raise
    # What would empty a file waits until it is known to be a regular one.
    opened = os.open(path, flags & ~os.O_TRUNC | _SAFE, mode)
    try:
        _check(os.fstat(opened), path)
        if flags & os.O_TRUNC:
            os.ftruncate(opened, 0)
    except BaseException:
        os.close(opened)
        raise
    return opened


def read_small(path: Path, most_bytes: int) -> bytes:
    """Return the content of a small regular file.

    Raises
    ------
    OSError
        As :func:`open_regular`; ``EFBIG`` if it has more than ``most_bytes``.
    """
    with os.fdopen(open_regular(path), "rb") as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
    return content


def _check(found: os.stat_result, path: Path) -> None:
    if stat.S_ISLNK(found.st_mode):
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))
