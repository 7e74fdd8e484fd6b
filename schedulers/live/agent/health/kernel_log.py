"""New lines of the kernel log, from the device /dev/kmsg or from a file that a logger extends.

Both readers continue after a restart of the agent where their saved position says. At the first
start they begin with the next line: what is older was there before the agent.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from presage.schedulers.live.agent.connection.lease import boot_id

KMSG = Path("/dev/kmsg")
_READ_BYTES = 1024 * 1024  # of a file, in one read
_RECORD_BYTES = 8192  # the kernel's limit of a record of /dev/kmsg
_MAX_RECORDS = 10_000  # in one read
_OPEN = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC


class KernelLog(Protocol):
    """Source of the lines of the kernel log."""

    @property
    def position(self) -> Mapping[str, object]:
        """Position after the lines that were read, as JSON; empty before the first read."""
        ...

    def read(self) -> list[str]:
        """Return the new lines, without blocking; the first ones if there are very many.

        Raises
        ------
        OSError
            The log cannot be read now.
        """
        ...


def open_kernel_log(path: Path, position: Mapping[str, object]) -> KernelLog:
    """Return the reader of a kernel log, which continues at a saved position."""
    return Kmsg(path, position) if path == KMSG else LogFile(path, position)


class LogFile:
    """Log in a file, such as /var/log/kern.log; it may be rotated or truncated."""

    def __init__(self, path: Path, position: Mapping[str, object]) -> None:
        self._path = path
        self._inode: int | None = None  # before the first read
        self._offset = 0
        inode, offset = position.get("inode"), position.get("offset")
        if isinstance(inode, int) and isinstance(offset, int) and offset >= 0:
            self._inode, self._offset = inode, offset

    @property
    def position(self) -> Mapping[str, object]:
        """Inode of the file, and offset after its last complete line."""
        return {} if self._inode is None else {"inode": self._inode, "offset": self._offset}

    def read(self) -> list[str]:
        """Return the complete lines after the position; a file that was rotated has only new ones.

        Raises
        ------
        OSError
            The file cannot be read, or is no regular file.
        """
        try:
            descriptor = os.open(self._path, _OPEN)
        except FileNotFoundError:
            self._inode = self._inode or 0  # all of the next file is new
            raise
        try:
            return self._read(descriptor, os.fstat(descriptor))
        finally:
            os.close(descriptor)

    def _read(self, descriptor: int, found: os.stat_result) -> list[str]:
        if not stat.S_ISREG(found.st_mode):
            raise OSError(f"{self._path} is neither a regular file nor {KMSG}")
        if self._inode is None:
            self._inode, self._offset = found.st_ino, found.st_size
            return []
        if self._inode != found.st_ino or self._offset > found.st_size:
            self._inode, self._offset = found.st_ino, 0
        content = os.pread(descriptor, _READ_BYTES, self._offset)
        end = content.rfind(b"\n") + 1
        if len(content) == _READ_BYTES and not end:
            end = _READ_BYTES  # no line of the kernel is so long
        self._offset += end
        return content[:end].decode(errors="replace").split("\n")


class Kmsg:
    """Log of the kernel in /dev/kmsg, as records ``PRIORITY,NUMBER,TIME_US,FLAGS;TEXT``.

    Only records of the kernel itself are returned: a process may write others to the device.
    """

    def __init__(self, path: Path, position: Mapping[str, object]) -> None:
        self._path, self._boot_id = path, boot_id()
        self._descriptor: int | None = None
        number = position.get("number")
        self._number = -1  # of the last record that was read
        self._is_first = "boot_id" not in position
        if position.get("boot_id") == self._boot_id and isinstance(number, int):
            self._number = number

    @property
    def position(self) -> Mapping[str, object]:
        """Boot of the machine, and number of the last record."""
        is_open = self._descriptor is not None
        return {"boot_id": self._boot_id, "number": self._number} if is_open else {}

    def read(self) -> list[str]:
        """Return the texts of the new records.

        Raises
        ------
        OSError
            The device cannot be opened; it may need the capability ``CAP_SYSLOG``.
        """
        if self._descriptor is None:
            self._descriptor = os.open(self._path, _OPEN)
        lines: list[str] = []
        is_older = self._is_first
        for _ in range(_MAX_RECORDS):
            try:
                record = os.read(self._descriptor, _RECORD_BYTES)
            except BlockingIOError:
                record = b""
            except BrokenPipeError:  # the kernel has overwritten the next records
                continue
            if not record:
                self._is_first = False
                break
            if (line := self._text(record)) is not None:
                lines.append(line)
        return [] if is_older else lines

    def _text(self, record: bytes) -> str | None:
        """Return the text of a new record of the kernel; None for another one."""
        prefix, _, text = record.decode(errors="replace").partition(";")
        fields = prefix.split(",")
        number = -1
        with suppress(ValueError, IndexError):
            number = int(fields[1])
        if number <= self._number:
            return None
        self._number = number
        is_of_kernel = fields[0].isascii() and fields[0].isdigit() and int(fields[0]) < 8
        return text.partition("\n")[0] if is_of_kernel else None
