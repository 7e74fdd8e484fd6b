"""Reader of a rank's table of decisions, in any process of the same user."""

from __future__ import annotations

import fcntl
import mmap
import os
import stat
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from presage.collectives.core.view import JobView
from presage.collectives.table.errors import TableError, TableUnavailableError
from presage.collectives.table.layout import (
    DEFAULT_FOLDER,
    HEADER_BYTES,
    NEXT_WORD,
    SEQUENCE_WORD,
    Content,
    capacity_of,
    table_path,
    unpack_content,
)

_SPINS, _WAIT_S = 100, 0.1  # a write takes microseconds, unless the owner is stopped or dead


class TableReader:
    """Decisions of a rank. A lookup copies the table only when its owner has changed it.

    Parameters
    ----------
    path : Path
        File of the table; see :meth:`find`.

    Raises
    ------
    TableUnavailableError
        There is no table, its owner has died, or it is closed.
    TableError
        The file is no table, or other users can write to it.
    """

    def __init__(self, path: Path) -> None:
        if sys.byteorder != "little":
            raise TableError("tables of decisions need a little-endian processor")
        self.path = path
        self._descriptor, self._memory = _map(path)
        self._words = memoryview(self._memory).cast("Q")
        self._sequence, self._view = -1, JobView(0)
        self._first, self._decisions = 0, b""
        try:
            if not self.is_owner_alive():
                raise TableUnavailableError(f"the owner of table {path} has died")
            self._refresh()
        except TableError:
            self.close()
            raise

    @classmethod
    def find(cls, job: str, rank: int, *, folder: Path = DEFAULT_FOLDER) -> Self:
        """Return a reader of the table of a rank."""
        return cls(table_path(job, rank, folder))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def view(self) -> JobView:
        """Published view.

        Raises
        ------
        TableUnavailableError
            The table is closed, or its owner has died while it wrote.
        """
        if self._words[SEQUENCE_WORD] != self._sequence:
            self._refresh()
        return self._view

    @property
    def next_number(self) -> int:
        """Number of the AllReduce that the rank starts next."""
        return self._words[NEXT_WORD]

    def is_allowed(self, number: int) -> bool:
        """Return whether an AllReduce runs on the switch; raise as :attr:`view`."""
        if self._words[SEQUENCE_WORD] != self._sequence:
            self._refresh()
        index = number - self._first
        return 0 <= index < len(self._decisions) and self._decisions[index] & 1 == 1

    def is_owner_alive(self) -> bool:
        """Return whether the process that publishes the table lives."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        return False

    def close(self) -> None:
        """Give up the memory."""
        self._words.release()
        self._memory.close()
        with suppress(OSError):
            os.close(self._descriptor)
        self._descriptor = -1

    def _refresh(self) -> None:
        """Copy the table once its owner has finished writing."""
        end_s, spins = time.monotonic() + _WAIT_S, 0
        while (found := self._copy()) is None:
            spins += 1
            if spins > _SPINS:
                time.sleep(0.001)
            if time.monotonic() > end_s:
                raise TableUnavailableError(f"table {self.path} has been written to for too long")
        sequence, content = found
        if content.is_closed:
            raise TableUnavailableError(f"table {self.path} is closed")
        self._view, self._sequence = content.view, sequence
        self._first, self._decisions = content.view.first_number, content.view.decisions

    def _copy(self) -> tuple[int, Content] | None:
        before = self._words[SEQUENCE_WORD]
        if before & 1:
            return None
        content = unpack_content(memoryview(self._memory[:]))
        if content is None or self._words[SEQUENCE_WORD] != before:
            return None
        return before, content


def _map(path: Path) -> tuple[int, mmap.mmap]:
    """Open and map a table after checks of its owner, mode and size."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        raise TableUnavailableError(f"there is no table {path}") from None
    except OSError as error:
        raise TableError(f"table {path} cannot be read: {error.strerror}") from error
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid not in (os.geteuid(), 0):
            raise TableError(f"table {path} is no file of this user")
        if found.st_mode & 0o022:
            raise TableError(f"table {path} can be written to by other users")
        capacity = capacity_of(os.pread(descriptor, HEADER_BYTES, 0))
        if capacity is None or capacity % 8 or found.st_size != HEADER_BYTES + capacity:
            raise TableError(f"{path} is no table of decisions of this version")
        return descriptor, mmap.mmap(descriptor, found.st_size, prot=mmap.PROT_READ)
    except BaseException:
        os.close(descriptor)
        raise
