"""File with the samples of the last seven days, of a fixed size.

The file is a ring: the sample of a minute overwrites that of seven days before. Each row has a
checksum. Rows are not flushed to the disk one by one: a killed controller loses none that it wrote,
a power failure the last ones.
"""

from __future__ import annotations

import logging
import os
import struct
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Self

from presage.schedulers.live.controller.history.history_sample import Sample
from presage.serving.server.log import log
from presage.system.files.atomic_file import replace_bytes

MINUTE_S = 60
ROWS = 7 * 24 * 60  # a week
_VERSION = 2
_MAGIC = b"presage cluster history"
_ROW = struct.Struct(f"<q{len(Sample._fields)}d")
_CHECKSUM = struct.Struct("<I")
ROW_BYTES = _ROW.size + _CHECKSUM.size
_HEADER = struct.pack("<32sII", _MAGIC, _VERSION, ROW_BYTES)
FILE_BYTES = len(_HEADER) + ROWS * ROW_BYTES
_EMPTY = bytes(ROW_BYTES)
_MAX_DAMAGED = 10  # rows; a power failure damages the last ones


class Row(NamedTuple):
    """Sample of a minute.

    Attributes
    ----------
    minute : int
        Minutes since 1970, UTC.
    """

    minute: int
    sample: Sample


class HistoryFile:
    """Ring of samples in a file; a context manager. Methods may be called from any thread.

    A file that is damaged is renamed to ``NAME.damaged``, and a new one is begun.

    Raises
    ------
    OSError
        The file cannot be created or opened.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._mutex = path, threading.Lock()
        self._last = -1  # minute of the last sample
        if not path.exists():
            _create(path)
        self._file = _open(path)
        try:
            problem = self._check()
            if problem:
                self._set_aside(problem)
        except BaseException:
            self.close()
            raise

    def append(self, row: Row) -> bool:
        """Write a sample; return whether it was written.

        A minute is written once, and minutes only increase. If the clock was set back, the samples
        that are now in the future are removed.

        Raises
        ------
        OSError
            The disk failed.
        """
        with self._mutex:
            if row.minute < self._last:
                self._remove_after(row.minute)
            if row.minute <= self._last:
                return False
            content = _ROW.pack(row.minute, *row.sample)
            self._write(row.minute, content + _CHECKSUM.pack(zlib.crc32(content)))
            self._last = row.minute
            return True

    def read(self, first: int, last: int) -> list[Row]:
        """Return the samples of minutes from ``first`` to ``last``, in order.

        Raises
        ------
        OSError
            The disk failed.
        """
        with self._mutex:
            first, last = max(first, self._last - ROWS + 1), min(last, self._last)
            if first > last:
                return []
            content = os.pread(self._file, FILE_BYTES, 0)
        rows = (_decode(content, minute % ROWS) for minute in range(first, last + 1))
        return [row for row in rows if row is not None and first <= row.minute <= last]

    def close(self) -> None:
        """Close the file."""
        with self._mutex:
            if self._file >= 0:
                os.close(self._file)
            self._file = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    # ----------------------------------------------------------------------------------------

    def _check(self) -> str:
        """Find the last minute, and remove damaged rows; return why the file cannot be used."""
        content = os.pread(self._file, FILE_BYTES + 1, 0)
        if len(content) != FILE_BYTES:
            return f"it has {len(content)} bytes instead of {FILE_BYTES}"
        if not content.startswith(_HEADER):
            return "its header is that of no history of this version"
        damaged = [number for number in range(ROWS) if _is_damaged(content, number)]
        if len(damaged) > _MAX_DAMAGED:
            return f"{len(damaged)} of its {ROWS} rows are damaged"
        for number in damaged:
            self._write(number, _EMPTY)
        if damaged:
            log(logging.WARNING, "history: damaged rows removed", rows=len(damaged))
        self._last = max((row.minute for row in _all_rows(content)), default=-1)
        return ""

    def _set_aside(self, problem: str) -> None:
        aside = self._path.with_name(f"{self._path.name}.damaged")
        log(logging.WARNING, "history set aside", error=problem, file=str(aside))
        self._path.replace(aside)
        _create(self._path)
        self.close()
        self._file, self._last = _open(self._path), -1

    def _remove_after(self, minute: int) -> None:
        """Remove the samples after a minute."""
        content = os.pread(self._file, FILE_BYTES, 0)
        left = -1
        for row in _all_rows(content):
            if row.minute > minute:
                self._write(row.minute, _EMPTY)
            else:
                left = max(left, row.minute)
        self._last = left

    def _write(self, minute: int, content: bytes) -> None:
        os.pwrite(self._file, content, len(_HEADER) + minute % ROWS * ROW_BYTES)


def _create(path: Path) -> None:
    """Write an empty file in full, so that later writes need no space on the disk."""
    replace_bytes(path, _HEADER.ljust(FILE_BYTES, b"\0"))


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)


def _all_rows(content: bytes) -> Iterator[Row]:
    for number in range(ROWS):
        row = _decode(content, number)
        if row is not None:
            yield row


def _row_bytes(content: bytes, number: int) -> bytes:
    begin = len(_HEADER) + number * ROW_BYTES
    return content[begin : begin + ROW_BYTES]


def _is_damaged(content: bytes, number: int) -> bool:
    return _row_bytes(content, number) != _EMPTY and _decode(content, number) is None


def _decode(content: bytes, number: int) -> Row | None:
    """Return a row; None if it is empty or damaged."""
    found = _row_bytes(content, number)
    if found == _EMPTY or len(found) != ROW_BYTES:
        return None
    (checksum,) = _CHECKSUM.unpack_from(found, _ROW.size)
    if zlib.crc32(found[: _ROW.size]) != checksum:
        return None
    minute, *values = _ROW.unpack_from(found)
    return Row(minute, Sample(*values)) if minute % ROWS == number else None


def open_history(path: Path) -> HistoryFile | None:
    """Open a history; log why and return None if that is not possible."""
    try:
        return HistoryFile(path)
    except OSError as error:
        log(logging.WARNING, "no history", file=str(path), error=str(error.strerror or error))
        return None
