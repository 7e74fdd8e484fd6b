"""A job's log, which does not fill the disk; bytes of it are counted from its beginning, always."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from presage.system.regular_file import open_regular, read_small

_FIRST = ".first"
_FIRST_BYTES = 32


class LogPart(NamedTuple):
    """What a job wrote, from a byte on; ``whole`` if it has written no more."""

    offset: int
    content: bytes
    whole: bool


def keep_small(log: Path, most_bytes: int) -> None:
    """Where a log has grown above a size, keep its end beside it and begin it anew.

    The job goes on writing to the same file, always to its end. What it writes in between is lost.
    """
    with suppress(OSError):  # on a full disk the old lines go, so that new ones find room
        opened = open_regular(log, os.O_RDWR)
        try:
            size = os.fstat(opened).st_size
            if size <= most_bytes:
                return
            try:
                _keep_end(opened, old_of(log), size - most_bytes, size)
            except OSError:  # a part of it would be taken for its end
                with suppress(OSError):
                    old_of(log).unlink()
            with suppress(OSError):
                write_first(log, first_of(log) + size)
            os.ftruncate(opened, 0)
        finally:
            os.close(opened)


def _keep_end(log: int, old: Path, at: int, size: int) -> None:
    """Copy bytes of an opened log."""
    target = open_regular(old, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        while copied := os.sendfile(target, log, at, size - at):
            at += copied
    finally:
        os.close(target)


def read_log(log: Path, offset: int, most_bytes: int) -> LogPart:
    """A part of a log, or what there still is of it; negative offsets are from its end.

    Raises
    ------
    OSError
        It is not there, or is not a regular file.
    """
    first = first_of(log)
    with os.fdopen(open_regular(log), "rb") as file:
        end = first + file.seek(0, os.SEEK_END)
        start = min(offset, end) if offset >= 0 else max(0, end + offset)
        content = b""
        if start < first:
            start, content = _read_old(log, first, start, most_bytes)
        if not content:
            file.seek(start - first)
            content = file.read(most_bytes)
    return LogPart(start, content, start + len(content) >= end)


def old_of(log: Path) -> Path:
    """Where the end is kept of what a log was before it began anew."""
    return log.with_name(f"{log.name}.old")


def first_file_of(log: Path) -> Path:
    """Which says how many bytes were written before the log's first one."""
    return log.with_name(f"{log.name}{_FIRST}")


def is_first_file(name: str) -> bool:
    """Whether a file of that name is such a one, and no log."""
    return name.endswith(_FIRST)


def first_of(log: Path) -> int:
    """How many bytes were written before a log's first one."""
    try:
        return int(read_small(first_file_of(log), _FIRST_BYTES))
    except (OSError, ValueError):
        return 0


def write_first(log: Path, first: int) -> None:
    """Say so, in the place of what the file has. Raises OSError."""
    file = open_regular(first_file_of(log), os.O_WRONLY | os.O_CREAT)
    try:
        os.pwrite(file, f"{first:020d}".encode(), 0)
    finally:
        os.close(file)


def _read_old(log: Path, first: int, start: int, most_bytes: int) -> tuple[int, bytes]:
    """From a byte on, or from the first that there still is, up to where the log begins."""
    try:
        with os.fdopen(open_regular(old_of(log)), "rb") as file:
            begins = first - file.seek(0, os.SEEK_END)
            start = max(start, begins)
            file.seek(start - begins)
            return start, file.read(most_bytes)
    except (OSError, ValueError):
        return first, b""
