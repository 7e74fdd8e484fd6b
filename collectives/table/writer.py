"""Table of decisions that a rank publishes."""

from __future__ import annotations

import fcntl
import mmap
import os
import stat
import threading
import time
import weakref
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from presage.collectives.core.view import RING_ONLY, JobView
from presage.collectives.table.errors import TableError, TableInUseError
from presage.collectives.table.layout import (
    CLOSED,
    CONTENT,
    DEFAULT_FOLDER,
    HEADER_BYTES,
    MAX_CAPACITY,
    NEXT_WORD,
    OPEN,
    SEQUENCE_WORD,
    pack_content,
    pack_header,
    table_path,
)

_MODE = 0o600
_TRIES, _PAUSE_S = 20, 0.005  # a reader holds the lock for a moment when it looks for the owner


class DecisionTable:
    """Shared memory with the view of one rank, and the view itself for its own process.

    The file is locked as long as its owner lives. Only one process can own the table of a rank; the
    file that a dead one left is replaced. After ``os.fork`` the child does not own the table.
    """

    def __init__(self, path: Path, descriptor: int, capacity: int) -> None:
        self.path = path
        self.view = RING_ONLY
        self._descriptor, self._capacity = descriptor, capacity
        self.memory = mmap.mmap(descriptor, HEADER_BYTES + capacity)
        self.words = memoryview(self.memory).cast("Q")
        self._write = threading.Lock()
        self._is_closed = False
        _OWNED.add(self)

    @classmethod
    def create(
        cls, job: str, rank: int, *, folder: Path = DEFAULT_FOLDER, capacity: int = 1 << 16
    ) -> Self:
        """Create the table of a rank.

        Parameters
        ----------
        job, rank : str, int
            Name of the job and place of the rank; they name the file.
        capacity : int
            Most AllReduces of a view.

        Raises
        ------
        TableInUseError
            A living process owns it.
        TableError
            The folder is missing or not writable, or the file belongs to another user.
        ValueError
            ``rank`` or ``capacity`` is out of range.
        """
        if rank < 0 or not 0 < capacity <= MAX_CAPACITY:
            raise ValueError(f"rank {rank} or capacity {capacity} is out of range")
        path, capacity = table_path(job, rank, folder), -(-capacity // 8) * 8
        try:
            return cls(path, _create_file(path, capacity), capacity)
        except OSError as error:
            raise TableError(f"table {path} cannot be created: {error.strerror}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def publish(self, view: JobView) -> None:
        """Replace the view, after the rank has adopted it.

        Raises
        ------
        ValueError
            The view has more AllReduces than the capacity, or an invalid number.
        TableError
            The table is closed, or belongs to the parent of this process.
        """
        if len(view.decisions) > self._capacity:
            raise ValueError(f"view of {len(view.decisions)} AllReduces; {self._capacity} fit")
        with self._write:
            if self._is_closed:
                raise TableError(f"table {self.path} is closed")
            self._replace(view, OPEN)
            self.view = view

    def start(self, number: int) -> None:
        """Set the number of the AllReduce that the rank starts next."""
        if self._is_closed:
            raise TableError(f"table {self.path} is closed")
        self.words[NEXT_WORD] = number

    def is_allowed(self, number: int) -> bool:
        """Return the decision of the published view, without the shared memory."""
        return self.view.is_allowed(number)

    def close(self) -> None:
        """Mark the table as closed for its readers and remove the file."""
        with self._write:
            if self._is_closed:
                return
            self._replace(RING_ONLY, CLOSED)
            with suppress(OSError):
                if os.path.samestat(self.path.stat(), os.fstat(self._descriptor)):
                    self.path.unlink()
            self._release()

    def _replace(self, view: JobView, state: int) -> None:
        guarded, decisions = pack_content(view, state)
        sequence = self.words[SEQUENCE_WORD] | 1
        self.words[SEQUENCE_WORD] = sequence
        self.memory[CONTENT : CONTENT + len(guarded)] = guarded
        self.memory[HEADER_BYTES : HEADER_BYTES + len(decisions)] = decisions
        self.words[SEQUENCE_WORD] = sequence + 1

    def _release(self) -> None:
        """Give up the memory and the lock, without a change of the file."""
        self._is_closed = True
        self.words.release()
        self.memory.close()
        os.close(self._descriptor)
        _OWNED.discard(self)


_OWNED: weakref.WeakSet[DecisionTable] = weakref.WeakSet()


def _release_in_child() -> None:
    """Leave the tables to the parent: a child that outlives it must not hold their locks."""
    for table in list(_OWNED):
        table._write = threading.Lock()
        table._release()


os.register_at_fork(after_in_child=_release_in_child)


def _create_file(path: Path, capacity: int) -> int:
    """Return the descriptor of a new, locked file; remove one that no process owns.

    The file gets its name when it is locked and complete, so that no process sees a part of it.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    partial.unlink(missing_ok=True)
    descriptor = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _MODE)
    try:
        os.fchmod(descriptor, _MODE)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.posix_fallocate(descriptor, 0, HEADER_BYTES + capacity)
        os.pwrite(descriptor, pack_header(capacity), 0)
        _link(partial, path)
    except BaseException:
        os.close(descriptor)
        raise
    finally:
        partial.unlink()
    return descriptor


def _link(partial: Path, path: Path) -> None:
    for _ in range(_TRIES):
        _remove_stale(path)
        with suppress(FileExistsError):
            path.hardlink_to(partial)
            return
    raise TableInUseError(f"table {path} belongs to a living process")


def _remove_stale(path: Path) -> None:
    """Remove the file of an owner that has died.

    Raises
    ------
    TableInUseError
        Its owner lives.
    TableError
        It is no file of this user.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
            raise TableError(f"table {path} is no file of this user; remove it")
        if not _locked(descriptor):
            raise TableInUseError(f"table {path} belongs to a living process")
        with suppress(FileNotFoundError):
            if os.path.samestat(path.lstat(), found):
                path.unlink()
    finally:
        os.close(descriptor)


def _locked(descriptor: int) -> bool:
    for _ in range(_TRIES):
        with suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        time.sleep(_PAUSE_S)
    return False
