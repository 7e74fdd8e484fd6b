"""Storage of a journal in an SQLite file, with locks that the kernel releases with the process.

One lock is on the file itself, independent of its path: hard links, bind mounts and renamed files
share it. Another is on a second file, by path: SQLite's write-ahead log (``-wal``) is found by path
too, so a file that replaces one in use must not be opened.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import sqlite3
import stat
import struct
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from presage.errors import ConfigError, JournalError, UnsureJournalError, one_line

_BUSY_S = 10.0  # wait for other programs that read the file
_MAX_HOLDER_BYTES = 200  # description of the holder in the lock file
_ANOTHER = "use another journal"
_FIXES = {
    sqlite3.SQLITE_FULL: "free space on its disk",
    sqlite3.SQLITE_READONLY: f"make the file and its folder writable, or {_ANOTHER}",
    sqlite3.SQLITE_CANTOPEN: f"make the file and its folder writable, or {_ANOTHER}",
    sqlite3.SQLITE_BUSY: "end the other program that writes to it",
    sqlite3.SQLITE_CORRUPT: f"restore a backup of it, or {_ANOTHER}",
    sqlite3.SQLITE_NOTADB: f"restore a backup of it, or {_ANOTHER}",
    sqlite3.SQLITE_CONSTRAINT: "another controller has written to it: stop this controller",
}
_LOCKED_BYTE = 2**62  # of the file; beyond all that SQLite locks or writes
# struct flock of Linux: type, whence, start, length, process. A lock of an open file description,
# which does not conflict with SQLite's own locks, which belong to the process.
_FLOCK = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, _LOCKED_BYTE, 1, 0)
_SET_LOCK = getattr(
    fcntl, "F_OFD_SETLK", None
)  # None except on Linux; then only the lock by path is used
# Files that this process has open, by device and inode. Closing a second descriptor of one of them
# would release SQLite's locks.
_OPEN: set[tuple[int, int]] = set()
_OPEN_MUTEX = threading.Lock()
# Errors of COMMIT that had no effect, such as a reached quota (IOERR_WRITE). After other errors, as
# of fsync, the written data may be present when the file is opened again.
_NOT_DONE = (
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_IOERR_WRITE,
)


class SqliteStore:
    """Store with one connection for all reads and writes."""

    big = "INTEGER"  # a primary key of this type is the row id
    may_lose_lock = False

    def __init__(self, path: str) -> None:
        self.where = path
        self._path = Path(path).resolve()  # a link to a journal has the journal's lock
        self.key_file = self._path.with_name(f"{self._path.name}.key")
        self._database: sqlite3.Connection | None = None
        self._lock: int | None = None
        self._file: int | None = None
        self._identity: tuple[int, int] | None = None

    def begin(self) -> bool:
        """Begin a transaction; return whether it is the first."""
        is_new = self._database is None
        if is_new:
            self._open()
        self.run("BEGIN IMMEDIATE")
        return is_new

    def run(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """Run a statement."""
        assert self._database is not None
        try:
            return self._database.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            raise self._cannot("be used", error) from error

    def run_many(self, statement: str, rows: Sequence[tuple[object, ...]]) -> None:
        """Run a statement for each row."""
        assert self._database is not None
        try:
            self._database.executemany(statement, rows)
        except sqlite3.Error as error:
            raise self._cannot("be written", error) from error

    def commit(self) -> None:
        """Commit; the data is on disk on return."""
        assert self._database is not None
        try:
            self._database.execute("COMMIT")
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", None) in _NOT_DONE:
                raise self._cannot("be written", error) from error
            raise UnsureJournalError(
                f"journal {self.where}: the disk failed while it was written "
                f"({one_line(error)}); repair the disk, open the journal again and read it"
            ) from error

    def rollback(self) -> None:
        """Roll back uncommitted changes."""
        if self._database is not None and self._database.in_transaction:
            with suppress(sqlite3.Error):
                self._database.execute("ROLLBACK")

    def settle(self) -> None:
        """Move the content of the write-ahead log to the file."""
        if self._database is not None:
            with suppress(sqlite3.Error):
                self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def tables(self) -> set[str]:
        """Return the names of the tables."""
        return {name for (name,) in self.run("SELECT name FROM sqlite_schema WHERE type = 'table'")}

    def close(self) -> None:
        """Close the file, then release the lock."""
        if self._database is not None:
            with suppress(sqlite3.Error):
                self._database.close()
            self._database = None
        self._close_file()  # not before: that would release SQLite's locks
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _open(self) -> None:
        try:
            self._path.parent.parent.mkdir(parents=True, exist_ok=True)
            self._path.parent.mkdir(mode=0o700, exist_ok=True)
            self._take_lock()
            self._take_file()
            self._database = sqlite3.connect(
                self._path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False
            )
            # Check first that it is an intact database: other files are not changed.
            damage = self._database.execute("PRAGMA quick_check(1)").fetchone()[0]
            if damage != "ok":
                raise sqlite3.DatabaseError(damage)
        except (OSError, sqlite3.Error) as error:
            raise self._cannot("be opened", error) from error
        if all(name.startswith("presage_journal") for name in self.tables()):
            self.run("PRAGMA journal_mode = WAL")  # one fsync for each commit
        self.run("PRAGMA secure_delete = ON")  # no secrets in free pages
        self.run("PRAGMA synchronous = FULL")  # NORMAL may lose the last commits in a power failure

    def _take_lock(self) -> None:
        """Take the lock by path. Its file is never deleted: it may be another process's by then."""
        lock = self._path.with_name(f"{self._path.name}.lock")
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._lock = os.open(lock, flags, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(self._lock, _MAX_HOLDER_BYTES, 0).decode(errors="replace")
            raise self._is_open(one_line(holder) or "another process") from error
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)

    def _take_file(self) -> None:
        """Lock the file itself, and make it private: it may contain secret commands."""
        with _OPEN_MUTEX:
            if self._path.exists() and _identity(self._path.stat()) in _OPEN:
                raise self._is_open(f"this process, {os.getpid()}, through another path")
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            self._file = os.open(self._path, flags, 0o600)
            found = os.fstat(self._file)
            try:
                if _SET_LOCK is not None:
                    fcntl.fcntl(self._file, _SET_LOCK, _FLOCK)
            except (BlockingIOError, PermissionError) as error:
                self._close_file()
                raise self._is_open("another process, through another path") from error
            self._identity = _identity(found)
            _OPEN.add(self._identity)
        for suffix in ("", "-wal", "-shm"):
            self._make_private(self._path.with_name(f"{self._path.name}{suffix}"))

    def _make_private(self, path: Path) -> None:
        """Make a file of an earlier version private; SQLite copies its mode to new files."""
        with suppress(FileNotFoundError, PermissionError):
            if stat.S_IMODE(path.stat().st_mode) & 0o077:
                path.chmod(0o600)

    def _close_file(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None
        if self._identity is not None:
            with _OPEN_MUTEX:
                _OPEN.discard(self._identity)
            self._identity = None

    def _is_open(self, holder: str) -> ConfigError:
        return ConfigError(
            f"journal {self.where} is open in {holder}; stop that controller, or {_ANOTHER}"
        )

    def _cannot(self, action: str, error: Exception) -> JournalError:
        fix = _FIXES.get(_code(error), f"check its disk, or {_ANOTHER}")
        return JournalError(f"journal {self.where} cannot {action} ({one_line(error)}); {fix}")


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def _code(error: Exception) -> int:
    """Return SQLite's primary result code of an error, or the closest one."""
    if isinstance(error, OSError):
        is_full = error.errno == errno.ENOSPC
        return sqlite3.SQLITE_FULL if is_full else sqlite3.SQLITE_CANTOPEN
    return int(getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT)) & 0xFF
