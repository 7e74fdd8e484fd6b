"""The outcome log: what really happened to jobs, on disk before it is acknowledged.

One SQLite file, which several processes may append to. A row is never changed (triggers see to
it), a key is taken once, and a commit returns when the disk has it: so ``kill -9``, a full disk or
a cut cable lose nothing that was acknowledged (decision 17). ``presage outcomes ingest`` reads it.
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
_BUSY_S = 10.0  # another process is writing: its commits take milliseconds
_MOST_REPORTS = 256  # that one commit takes


@dataclass(frozen=True, slots=True)
class ReportedOutcome:
    """A row of the log: ``message`` is a serialized ``presage.v1.Outcome``."""

    position: int
    idempotency_key: str
    received_at_unix_s: float
    reported_by: str
    message: bytes


@dataclass(frozen=True, slots=True)
class Appended:
    """What became of a report.

    ``conflicting`` are the positions of outcomes whose key stands for another outcome; all others
    are on disk now, those at ``new`` since this report.
    """

    accepted: int
    duplicates: int
    conflicting: tuple[int, ...] = ()
    new: tuple[int, ...] = field(default=(), compare=False)


Report = tuple[Sequence[tuple[str, bytes]], str]


class OutcomeLog:
    """Appends reports in a thread of its own, those that wait together in one commit.

    Parameters
    ----------
    open_now : bool
        False leaves the file alone until :meth:`open`: a server that cannot start creates none.

    Raises
    ------
    OutcomeLogError
        The file cannot be opened, or not be written; nothing of the report is acknowledged then.
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
        """Open the file, which is created if need be, and begin to write; once.

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
        """Put keys and messages on disk; done once they are there.

        A key that the log has already is not written again; where it stands for another outcome,
        as when two clusters name their jobs alike, that is said. A report that is cancelled may be
        in the log or not, whole.
        """
        done: Future[Appended] = Future()
        with self._closing:
            if self._closed:
                raise OutcomeLogError(
                    f"outcome log {self._path} is closed: this server stops; report to another"
                )
            self._reports.put(((outcomes, reported_by), done))
        return done

    def close(self) -> None:
        """Finish what was appended before; the log takes no more."""
        with self._closing:
            self._closed = True
            self._reports.put(None)
        if self._writer.ident is not None:  # it was opened
            self._writer.join()

    def _write(self) -> None:
        try:
            database = _open(self._path)
        except Exception as error:  # whatever it is: somebody waits
            self._opened.set_exception(error)
            return
        self._opened.set_result(None)
        with closing(database):
            while (first := self._reports.get()) is not None:
                waiting = [first]
                last = False
                while not (last or self._reports.empty() or len(waiting) == _MOST_REPORTS):
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
        # A report that was cancelled is dropped; from here on none can be.
        waiting = [row for row in waiting if row[1].set_running_or_notify_cancel()]
        try:
            with database:
                database.execute("BEGIN IMMEDIATE")
                written = [_append(database, report) for report, _ in waiting]
        except Exception as error:  # whatever it is: others report after these
            refused = _cannot(self._path, "written", error)
            for _, done in waiting:
                done.set_exception(refused)
            return
        for (_, done), appended in zip(waiting, written, strict=True):
            done.set_result(appended)


def read_outcomes(
    path: Path, *, after: int = 0, most: int | None = None
) -> Iterator[ReportedOutcome]:
    """Rows of a log beyond a position, in the order they were written; ``most`` of them or all.

    Raises
    ------
    OutcomeLogError
        There is no log, or it cannot be read.
    """
    with _reading(path) as database:
        for row in database.execute(_SELECT, (after, -1 if most is None else most)):
            yield ReportedOutcome(*row)


def last_position(path: Path) -> int:
    """Of the newest row of a log; 0 where it has none. Raises as :func:`read_outcomes`."""
    with _reading(path) as database:
        return int(database.execute(_LAST).fetchone()[0])


@contextmanager
def _reading(path: Path) -> Iterator[sqlite3.Connection]:
    try:
        # Not mode=ro: a reader of a write-ahead log makes its shared memory where there is none.
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=rw", uri=True)) as database:
            # Of a text that is none, its bytes: one such row must not hide those after it.
            database.text_factory = lambda text: text.decode(errors="backslashreplace")
            yield database
    except (sqlite3.Error, UnicodeError) as error:  # of a damaged schema, even its error's text
        raise OutcomeLogError(
            f"outcome log {path} cannot be read ({one_line(error)}); name the file that is the "
            "server's --outcomes"
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
        raise _cannot(path, "opened", error) from error
    return database


def _create_private(path: Path) -> None:
    """Create the file for its owner alone; SQLite gives the files next to it the same mode.

    A file that exists is not opened: closing it would end the locks that this process has on it.
    """
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def _missing_folders(path: Path) -> list[Path]:
    """Return the parents of a file that do not exist, the innermost first."""
    out = []
    for folder in path.parents:
        with suppress(OSError, ValueError):  # a name that is too long, or has a zero byte
            if not folder.exists():
                out.append(folder)
    return out


def _remove_empty(folders: Sequence[Path]) -> None:
    """Remove folders in which nothing was created; never a file, which may be another process's."""
    for folder in folders:
        with suppress(OSError, ValueError):
            folder.rmdir()


def _prepare(database: sqlite3.Connection) -> None:
    """Make a new file a log; find out whether any other is one and may be written."""
    until_s = time.monotonic() + _BUSY_S
    while True:
        try:
            # Readers beside the writer.
            database.execute("PRAGMA journal_mode = WAL")
            break
        except sqlite3.OperationalError as error:
            # Here alone SQLite does not wait by itself for another process that does the same.
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > until_s:
                raise
            time.sleep(0.01)
    # NORMAL may lose the last commits with the power.
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


def _cannot(path: Path, what: str, error: Exception) -> OutcomeLogError:
    return OutcomeLogError(
        f"outcome log {path} cannot be {what} ({error}); make room for it, or name another file "
        "with --outcomes"
    )
