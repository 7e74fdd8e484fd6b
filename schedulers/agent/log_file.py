"""A job's log, which does not fill the disk; bytes of it are counted from its beginning, always."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_FIRST = ".first"


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
        size = log.stat().st_size
        if size <= most_bytes:
            return
        try:
            old_of(log).touch(mode=0o600)
            with log.open("rb") as source, old_of(log).open("wb") as target:
                at = size - most_bytes
                while copied := os.sendfile(target.fileno(), source.fileno(), at, size - at):
                    at += copied
        except OSError:  # a part of it would be taken for its end
            old_of(log).unlink(missing_ok=True)
        with suppress(OSError):
            write_first(log, first_of(log) + size)
        os.truncate(log, 0)


def read_log(log: Path, offset: int, most_bytes: int) -> LogPart:
    """A part of a log, or what there still is of it; negative offsets are from its end.

    Raises
    ------
    OSError
        It is not there.
    """
    first = first_of(log)
    with log.open("rb") as file:
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
        return int(first_file_of(log).read_text())
    except (OSError, ValueError):
        return 0


def write_first(log: Path, first: int) -> None:
    """Say so, in the place of what the file has. Raises OSError."""
    file = os.open(first_file_of(log), os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        os.pwrite(file, f"{first:020d}".encode(), 0)
    finally:
        os.close(file)


def _read_old(log: Path, first: int, start: int, most_bytes: int) -> tuple[int, bytes]:
    """From a byte on, or from the first that there still is, up to where the log begins."""
    try:
        with old_of(log).open("rb") as file:
            begins = first - file.seek(0, os.SEEK_END)
            start = max(start, begins)
            file.seek(start - begins)
            return start, file.read(most_bytes)
    except OSError:
        return first, b""
