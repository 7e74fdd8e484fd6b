"""Files that a user names: opened so that no kind of file can hold up or fill the process."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
    stat.S_IFSOCK: "a socket",
}
_PIECE_BYTES = 1 << 20
# Neither waits for a writer of a FIFO, nor becomes a process's terminal. Not on Windows.
_FLAGS = sum(getattr(os, name, 0) for name in ("O_NONBLOCK", "O_NOCTTY", "O_CLOEXEC", "O_BINARY"))


def read_regular(path: Path, most_bytes: int) -> bytes:
    """Return the content of a regular file.

    Raises
    ------
    OSError
        It cannot be read, is no regular file (EINVAL), or is larger than ``most_bytes`` (EFBIG);
        ``strerror`` says which.
    """
    _check(path.stat(), path)  # before it is opened: opening some devices has an effect
    with os.fdopen(os.open(path, os.O_RDONLY | _FLAGS), "rb", buffering=0) as file:
        found = os.fstat(file.fileno())
        _check(found, path)
        if found.st_size > most_bytes:
            raise _too_large(path, most_bytes)
        pieces: list[bytes] = []
        left = most_bytes + 1  # it may grow while it is read
        while left and (piece := file.read(min(left, _PIECE_BYTES))):
            pieces.append(piece)
            left -= len(piece)
    if not left:
        raise _too_large(path, most_bytes)
    return b"".join(pieces)


def _check(found: os.stat_result, path: Path) -> None:
    if not stat.S_ISREG(found.st_mode):
        kind = _KINDS.get(stat.S_IFMT(found.st_mode), "something else")
        raise OSError(errno.EINVAL, f"not a regular file but {kind}", str(path))


def _too_large(path: Path, most_bytes: int) -> OSError:
    most = f"{most_bytes >> 30} GiB" if most_bytes >= 1 << 30 else f"{most_bytes >> 20} MiB"
    return OSError(errno.EFBIG, f"larger than {most}", str(path))
