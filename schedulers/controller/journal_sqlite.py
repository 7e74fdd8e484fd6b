"""A journal in an SQLite file, and a lock beside it that the kernel takes back from the dead."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import sqlite3
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from presage.features.errors import ConfigError, JournalError, UnsureJournalError, one_line

_BUSY_S = 10.0  # somebody looks into the file with a program of their own
_MOST_SAID = 200  # bytes in the lock's file about who has it
_ANOTHER = "name another journal"
_MENDS = {
    sqlite3.SQLITE_FULL: "make room on its disk",
    sqlite3.SQLITE_READONLY: f"make the file and its folder writable, or {_ANOTHER}",
    sqlite3.SQLITE_CANTOPEN: f"make the file and its folder writable, or {_ANOTHER}",
    sqlite3.SQLITE_BUSY: "end the other program that writes to it",
    sqlite3.SQLITE_CORRUPT: f"put back a copy of it, or {_ANOTHER}",
    sqlite3.SQLITE_NOTADB: f"put back a copy of it, or {_ANOTHER}",
    sqlite3.SQLITE_CONSTRAINT: "another controller has written to it: stop this one",
}
# What COMMIT says when it has certainly done nothing, as at the end of a quota (IOERR_WRITE). After
# any other error, as of fsync, what was written may be found when the file is opened again.
_NOT_DONE = (
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_IOERR_WRITE,
)


class SqliteStore:
    """One connection, which alone reads and writes: a store as the journal wants it."""

    big = "INTEGER"  # of this name a primary key is the row's own number
    may_lose_lock = False

    def __init__(self, path: str) -> None:
        self.where = path
        self._path = Path(path).resolve()  # a link to a journal has the journal's lock
        self._database: sqlite3.Connection | None = None
        self._lock: int | None = None

    def begin(self) -> bool:
        """Begin a transaction; True for the first."""
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
        """Returns when the disk has it."""
        assert self._database is not None
        try:
            self._database.execute("COMMIT")
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", None) in _NOT_DONE:
                raise self._cannot("be written", error) from error
            raise UnsureJournalError(
                f"journal {self.where}: the disk failed while it was written "
                f"({one_line(error)}); mend the disk, open the journal again and read what it has"
            ) from error

    def rollback(self) -> None:
        """Undo what was not committed."""
        if self._database is not None and self._database.in_transaction:
            with suppress(sqlite3.Error):
                self._database.execute("ROLLBACK")

    def tables(self) -> set[str]:
        """Names of those that the file has."""
        return {name for (name,) in self.run("SELECT name FROM sqlite_schema WHERE type = 'table'")}

    def close(self) -> None:
        """Close the file, then let go of the lock."""
        if self._database is not None:
            with suppress(sqlite3.Error):
                self._database.close()
            self._database = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _open(self) -> None:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._take_lock()
            # What jobs find in their environment may be secret; its other files get its mode.
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600))
            self._database = sqlite3.connect(
                self._path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False
            )
            # First of all that it is a database, and whole: of any other nothing is changed.
            damage = self._database.execute("PRAGMA quick_check(1)").fetchone()[0]
            if damage != "ok":
                raise sqlite3.DatabaseError(damage)
        except (OSError, sqlite3.Error) as error:
            raise self._cannot("be opened", error) from error
        if all(name.startswith("presage_journal") for name in self.tables()):
            self.run("PRAGMA journal_mode = WAL")  # one fsync for each commit
        self.run("PRAGMA synchronous = FULL")  # NORMAL may lose the last commits with the power

    def _take_lock(self) -> None:
        """The file stays when the lock is gone: whoever deleted it could delete another's."""
        lock = self._path.with_name(f"{self._path.name}.lock")
        self._lock = os.open(lock, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(self._lock, _MOST_SAID, 0).decode(errors="replace")
            raise ConfigError(
                f"journal {self.where} is open in {one_line(holder) or 'another process'}; stop "
                f"that controller, or {_ANOTHER}"
            ) from error
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)

    def _cannot(self, what: str, error: Exception) -> JournalError:
        mend = _MENDS.get(_code(error), f"look after its disk, or {_ANOTHER}")
        return JournalError(f"journal {self.where} cannot {what} ({one_line(error)}); {mend}")


def _code(error: Exception) -> int:
    """SQLite's primary result code, or the one that is nearest."""
    if isinstance(error, OSError):
        full = error.errno == errno.ENOSPC
        return sqlite3.SQLITE_FULL if full else sqlite3.SQLITE_CANTOPEN
    return int(getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT)) & 0xFF
