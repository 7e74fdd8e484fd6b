"""Outcome log: reported outcomes of jobs, on disk before they are acknowledged.

The log is one SQLite file that several processes may append to. Rows are never changed (triggers
enforce it), each key is stored once, and a commit returns when the data is on disk. So ``kill -9``,
a full disk or a power failure lose no acknowledged outcome (decision 17). ``presage outcomes
ingest`` reads the log. A withdrawal is a row of its own.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue

from presage.errors import OutcomeLogError, one_line

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
_MAX_REPORTS = 256  # per commit


@dataclass(frozen=True, slots=True)
class ReportedOutcome:
    """Row of the log; ``message`` is a serialized ``presage.v1.Outcome``."""

    position: int
    idempotency_key: str
    received_at_unix_s: float
    reported_by: str
    message: bytes


@dataclass(frozen=True, slots=True)
class Appended:
    """Result of appending a report.

    ``conflicting`` are the positions of outcomes whose key belongs to another outcome. All others
    are on disk; those at ``new`` were written by this report.
    """

    accepted: int
    duplicates: int
    conflicting: tuple[int, ...] = ()
    new: tuple[int, ...] = field(default=(), compare=False)


Report = tuple[Sequence[tuple[str, bytes]], str]


class OutcomeLog:
    """Writer of an outcome log with a thread of its own that commits waiting reports together.

    Parameters
    ----------
    open_now : bool
        If False, the file is opened by :meth:`open`, so that a server that cannot start creates no
        file.

    Raises
    ------
    OutcomeLogError
        The file cannot be opened or written; nothing of the report is acknowledged then.
    """

    def __init__(self, path: Path, *, open_now: bool = True) -> None:
        self._path = path
        self._reports: SimpleQueue[tuple[Report, Future[Appended]] | None] = SimpleQueue()
        self._closed = False
        self._closing = threading.Lock()
        self._opened: Future[None] = Future()
        self._writer = threading.Thread(target=self._write, name="outcome-log", daemon=True)
        if open_now:
            self.open()

    def open(self) -> None:
        """Open or create the file and start the writer thread; call once.

        Raises
        ------
        OutcomeLogError
            The file cannot be opened; folders that were created for it are removed again.
        """
        self._writer.start()
        self._opened.result()

    def append(
        self, outcomes: Sequence[tuple[str, bytes]], *, reported_by: str
    ) -> Future[Appended]:
        """Append keys and messages; the future completes when they are on disk.

        A known key is not written again. If it belongs to another outcome, for example because two
        clusters use the same job names, the outcome is in ``conflicting``. A cancelled report is
        written completely or not at all.
        """
        done: Future[Appended] = Future()
        with self._closing:
            if self._closed:
                raise OutcomeLogError(
                    f"outcome log {self._path} is closed because the server is shutting down; "
                    "report to another server"
                )
            self._reports.put(((outcomes, reported_by), done))
        return done

    def close(self) -> None:
        """Write the pending reports and stop; later reports raise OutcomeLogError."""
        with self._closing:
            self._closed = True
            self._reports.put(None)
        if self._writer.ident is not None:  # it was opened
            self._writer.join()

    def _write(self) -> None:
        try:
            database = _open(self._path)
        except Exception as error:  # any error must reach open(), which waits
            self._opened.set_exception(error)
            return
        self._opened.set_result(None)
        with closing(database):
            while (first := self._reports.get()) is not None:
                waiting = [first]
                last = False
                while not (last or self._reports.empty() or len(waiting) == _MAX_REPORTS):
                    following = self._reports.get()
                    last = following is None
                    if following is not None:
                        waiting.append(following)
                self._commit(database, waiting)
                if last:
                    return

    def _commit(
        self, database: sqlite3.Connection, waiting: Sequence[tuple[Report, Future[Appended]]]
    ) -> None:
        # Cancelled reports are dropped; from here on none can be cancelled.
        waiting = [row for row in waiting if row[1].set_running_or_notify_cancel()]
        try:
            with database:
                database.execute("BEGIN IMMEDIATE")
                written = [_append(database, report) for report, _ in waiting]
        except Exception as error:  # any error: the thread must go on with later reports
            failure = _log_error(self._path, "written", error)
            for _, done in waiting:
                done.set_exception(failure)
            return
        for (_, done), appended in zip(waiting, written, strict=True):
            done.set_result(appended)


def read_outcomes(
    path: Path, *, after: int = 0, limit: int | None = None
) -> Iterator[ReportedOutcome]:
    """Yield the rows of a log after a position in the order of writing, at most ``limit``.

    Raises
    ------
    OutcomeLogError
        The log does not exist or cannot be read.
    """
    with _reading(path) as database:
        for row in database.execute(_SELECT, (after, -1 if limit is None else limit)):
            yield ReportedOutcome(*row)


def withdrawn_keys(path: Path, *, after: int = 0) -> list[tuple[int, str]]:
    """Return positions and keys of withdrawals after a position, in the order of writing.

    Raises as :func:`read_outcomes`.
    """
    with _reading(path) as database:
        if database.execute(_HAS_WITHDRAWALS).fetchone() is None:  # the log of an older version
            return []
        return [(int(at), str(key)) for at, key in database.execute(_SELECT_WITHDRAWN, (after,))]


def withdraw(path: Path, *, keys: Sequence[str] = (), reported_by: Sequence[str] = ()) -> int:
    """Withdraw outcomes by their keys or by their reporters; return how many were not before.

    A withdrawn outcome stays in the log, and neither trains a release nor gives an offset.

    Raises
    ------
    OutcomeLogError
        The log does not exist or cannot be written.
    """
    last_position(path)  # raises for a missing file, instead of creating one
    chosen = [(key, None) for key in keys] + [(None, name) for name in reported_by]
    database = _open(path)
    try:
        with closing(database), database:
            database.execute("BEGIN IMMEDIATE")
            now_s = time.time()
            return sum(database.execute(_WITHDRAW, (now_s, *one)).rowcount for one in chosen)
    except sqlite3.Error as error:
        raise _log_error(path, "written", error) from error


def last_position(path: Path) -> int:
    """Return the position of the newest row; 0 without rows. Raises as :func:`read_outcomes`."""
    with _reading(path) as database:
        return int(database.execute(_LAST).fetchone()[0])


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
    outcomes, reported_by = report
    now_s = time.time()
    new, conflicting = [], []
    for position, (key, message) in enumerate(outcomes):
        if database.execute(_APPEND, (key, now_s, reported_by, message)).rowcount:
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
