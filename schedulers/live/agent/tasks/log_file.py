"""Size-limited log of a job; offsets count from the first byte that the job ever wrote."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from presage.system.files.regular_file import open_regular, read_small

_SUFFIX = ".first"
_MAX_OFFSET_BYTES = 32


class LogPart(NamedTuple):
    """Part of a log from an offset; ``is_complete`` if it reaches the end of the log."""

    offset: int
    content: bytes
    is_complete: bool


def limit_log_size(log: Path, max_bytes: int) -> None:
    """Rotate a log that exceeds a size: keep its end in the previous log, and truncate it.

    The job keeps appending to the same file; what it writes in between is lost.
    """
    with suppress(OSError):  # on a full disk the old lines are dropped in favour of new ones
        opened = open_regular(log, os.O_RDWR)
        try:
            size = os.fstat(opened).st_size
            if size <= max_bytes:
                return
            try:
                _copy_end(opened, previous_log(log), size - max_bytes, size)
            except OSError:  # a partial copy would be mistaken for the end
                with suppress(OSError):
                    previous_log(log).unlink()
            with suppress(OSError):
                write_start_offset(log, start_offset(log) + size)
            os.ftruncate(opened, 0)
        finally:
            os.close(opened)


def _copy_end(log: int, previous: Path, start: int, size: int) -> None:
    """Copy an opened log from an offset on."""
    target = open_regular(previous, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        while copied := os.sendfile(target, log, start, size - start):
            start += copied
    finally:
        os.close(target)


def read_log(log: Path, offset: int, max_bytes: int) -> LogPart:
    """Return a part of a log, from the first byte that is still available.

    A negative offset counts from the end.

    Raises
    ------
    OSError
        There is no log, or it is not a regular file.
    """
    first = start_offset(log)
    with os.fdopen(open_regular(log), "rb") as file:
        end = first + file.seek(0, os.SEEK_END)
        start = min(offset, end) if offset >= 0 else max(0, end + offset)
        content = b""
        if start < first:
            start, content = _read_previous(log, first, start, max_bytes)
        if not content:
            file.seek(start - first)
            content = file.read(max_bytes)
    return LogPart(start, content, start + len(content) >= end)


def previous_log(log: Path) -> Path:
    """Return the path of the end of the log before its last truncation."""
    return log.with_name(f"{log.name}.old")


def start_offset_file(log: Path) -> Path:
    """Return the path of the file with the offset of the log's first byte."""
    return log.with_name(f"{log.name}{_SUFFIX}")


def is_start_offset_file(name: str) -> bool:
    """Return whether a file of this name contains a start offset, and is not a log."""
    return name.endswith(_SUFFIX)


def start_offset(log: Path) -> int:
    """Return the offset of a log's first byte."""
    try:
        return int(read_small(start_offset_file(log), _MAX_OFFSET_BYTES))
    except (OSError, ValueError):
        return 0


def write_start_offset(log: Path, offset: int) -> None:
    """Overwrite the offset of a log's first byte. Raises OSError."""
    file = open_regular(start_offset_file(log), os.O_WRONLY | os.O_CREAT)
    try:
        os.pwrite(file, f"{offset:020d}".encode(), 0)
    finally:
        os.close(file)


def _read_previous(log: Path, first: int, start: int, max_bytes: int) -> tuple[int, bytes]:
    """Return the part of the previous log from an offset on, and where it starts."""
    try:
        with os.fdopen(open_regular(previous_log(log)), "rb") as file:
            old_first = first - file.seek(0, os.SEEK_END)
            start = max(start, old_first)
            file.seek(start - old_first)
            return start, file.read(max_bytes)
    except (OSError, ValueError):
        return first, b""
