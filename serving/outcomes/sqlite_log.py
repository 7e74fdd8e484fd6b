"""Outcome log in one SQLite file that several processes of a machine append to (decision 17)."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from presage.errors import OutcomeLogError, one_line
from presage.serving.outcomes.log_storage import Appended, Report, ReportedOutcome

_SCHEMA = """
BEGIN IMMEDIATE;
CREATE TABLE IF NOT EXISTS outcomes (
    position INTEGER PRIMARY KEY,
    idempotency_key TEXT NOT NULL UNIQUE,
    received_at_unix_s REAL NOT NULL,
    reported_by TEXT NOT NULL,
    message BLOB NOT NULL
) STRICT;
CREATE TRIGGER IF NOT EXISTS never_changed BEFORE UPDATE ON outcomes
BEGIN SELECT RAISE(ABORT, 'an outcome is never changed'); END;
CREATE TRIGGER IF NOT EXISTS never_removed BEFORE DELETE ON outcomes
BEGIN SELECT RAISE(ABORT, 'an outcome is never removed'); END;
-- REPLACE removes what was there, and fires neither of the above.
CREATE TRIGGER IF NOT EXISTS never_replaced BEFORE INSERT ON outcomes
WHEN EXISTS (
    SELECT 1 FROM outcomes
    WHERE idempotency_key = NEW.idempotency_key OR position = NEW.position
)
BEGIN SELECT RAISE(IGNORE); END;
CREATE TABLE IF NOT EXISTS withdrawals (
    position INTEGER PRIMARY KEY,
    idempotency_key TEXT NOT NULL UNIQUE,
    withdrawn_at_unix_s REAL NOT NULL
) STRICT;
COMMIT;
"""
_APPEND = """
INSERT INTO outcomes (idempotency_key, received_at_unix_s, reported_by, message)
VALUES (?, ?, ?, ?) ON CONFLICT (idempotency_key) DO NOTHING
"""
_SELECT = """
SELECT position, idempotency_key, received_at_unix_s, reported_by, message
FROM outcomes WHERE position > ? ORDER BY position LIMIT ?
"""
_LAST = "SELECT coalesce(max(position), 0) FROM outcomes"
_FIND = "SELECT message FROM outcomes WHERE idempotency_key = ?"
_WITHDRAW = """
INSERT INTO withdrawals (idempotency_key, withdrawn_at_unix_s)
SELECT idempotency_key, ? FROM outcomes
WHERE idempotency_key = ? OR reported_by = ?
ON CONFLICT (idempotency_key) DO NOTHING
"""
_SELECT_WITHDRAWN = """
SELECT position, idempotency_key FROM withdrawals WHERE position > ? ORDER BY position
"""
_HAS_WITHDRAWALS = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'withdrawals'"
_BUSY_S = 10.0  # maximum wait for another writer, whose commits take milliseconds


class SqliteLog:
    """Log in a file; see :class:`~presage.serving.outcomes.log_storage.LogStorage`."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def open(self) -> SqliteWriter:
        """Open or create the file."""
        return SqliteWriter(self._path)

    def rows(self, after: int, limit: int | None) -> Iterator[ReportedOutcome]:
        """Yield rows after a position."""
        with _reading(self._path) as database:
            for row in database.execute(_SELECT, (after, -1 if limit is None else limit)):
                yield ReportedOutcome(*row)

    def withdrawals(self, after: int) -> list[tuple[int, str]]:
        """Return positions and keys of withdrawals after a position."""
        with _reading(self._path) as database:
            if database.execute(_HAS_WITHDRAWALS).fetchone() is None:  # of an older version
                return []
            found = database.execute(_SELECT_WITHDRAWN, (after,))
            return [(int(at), str(key)) for at, key in found]

    def withdraw(self, keys: Sequence[str], reported_by: Sequence[str]) -> int:
        """Withdraw outcomes of an existing log."""
        self.last_position()  # raises for a missing file, instead of creating one
        chosen = [(key, None) for key in keys] + [(None, name) for name in reported_by]
        database = _open(self._path)
        try:
            with closing(database), database:
                database.execute("BEGIN IMMEDIATE")
                now_s = time.time()
                return sum(database.execute(_WITHDRAW, (now_s, *one)).rowcount for one in chosen)
        except sqlite3.Error as error:
            raise _log_error(self._path, "written", error) from error

    def last_position(self) -> int:
        """Return the position of the newest row."""
        with _reading(self._path) as database:
            return int(database.execute(_LAST).fetchone()[0])


class SqliteWriter:
    """Open file."""

    def __init__(self, path: Path) -> None:
        self._path, self._database = path, _open(path)

    def commit(self, reports: Sequence[Report]) -> list[Appended]:
        """Write reports in one transaction."""
        try:
            with self._database:
                self._database.execute("BEGIN IMMEDIATE")
                return [_append(self._database, report) for report in reports]
        except Exception as error:  # any error, also of a value that SQLite cannot store
            raise _log_error(self._path, "written", error) from error

    def close(self) -> None:
        """Close the file."""
        self._database.close()


@contextmanager
def _reading(path: Path) -> Iterator[sqlite3.Connection]:
    try:
        # Not mode=ro: a reader of a write-ahead log may have to create its shared memory.
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=rw", uri=True)) as database:
            # Decode invalid text too: one such row must not hide the rows after it.
            database.text_factory = lambda text: text.decode(errors="backslashreplace")
            yield database
    except (sqlite3.Error, UnicodeError) as error:  # the text of an error may be invalid as well
        raise OutcomeLogError(
            f"outcome log {path} cannot be read ({one_line(error)}); give the file of the server's "
            "--outcomes"
        ) from error


def _open(path: Path) -> sqlite3.Connection:
    missing = _missing_folders(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _create_private(path)
        database = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None)
        try:
            _prepare(database)
        except sqlite3.Error:
            database.close()
            raise
    except (OSError, sqlite3.Error) as error:
        _remove_empty(missing)
        raise _log_error(path, "opened", error) from error
    return database


def _create_private(path: Path) -> None:
    """Create the file with access for its owner only; SQLite uses this mode for its other files.

    An existing file is not opened: closing it would release the locks of this process on it.
    """
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def _missing_folders(path: Path) -> list[Path]:
    """Return the missing parent folders of a file, innermost first."""
    out = []
    for folder in path.parents:
        with suppress(OSError, ValueError):  # a name that is too long or contains a zero byte
            if not folder.exists():
                out.append(folder)
    return out


def _remove_empty(folders: Sequence[Path]) -> None:
    """Remove empty folders; never remove a file, which may belong to another process."""
    for folder in folders:
        with suppress(OSError, ValueError):
            folder.rmdir()


def _prepare(database: sqlite3.Connection) -> None:
    """Create the tables in a new file; check that an existing file is a writable log."""
    until_s = time.monotonic() + _BUSY_S
    while True:
        try:
            # WAL permits readers while the writer writes.
            database.execute("PRAGMA journal_mode = WAL")
            break
        except sqlite3.OperationalError as error:
            # Only here SQLite does not wait by itself for another process that does the same.
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > until_s:
                raise
            time.sleep(0.01)
    # NORMAL may lose the last commits at a power failure.
    database.execute("PRAGMA synchronous = FULL")
    database.executescript(_SCHEMA)
    database.execute(_SELECT, (0, 0))


def _append(database: sqlite3.Connection, report: Report) -> Appended:
    outcomes, reported_by, received_at_s = report
    at_s = time.time() if received_at_s is None else received_at_s
    new, conflicting = [], []
    for position, (key, message) in enumerate(outcomes):
        if database.execute(_APPEND, (key, at_s, reported_by, message)).rowcount:
            new.append(position)
        elif database.execute(_FIND, (key,)).fetchone() != (message,):
            conflicting.append(position)
    duplicates = len(outcomes) - len(new) - len(conflicting)
    return Appended(len(new), duplicates, tuple(conflicting), tuple(new))


def _log_error(path: Path, operation: str, error: Exception) -> OutcomeLogError:
    return OutcomeLogError(
        f"outcome log {path} cannot be {operation} ({error}); free disk space, or give another "
        "file with --outcomes"
    )
