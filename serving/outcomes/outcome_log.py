"""Outcome log: reported outcomes of jobs, on disk before they are acknowledged.

The log is an SQLite file, or a PostgreSQL database that servers of several machines append to.
Rows are never changed (triggers enforce it), each key is stored once, and a commit returns when the
data is on disk. So ``kill -9``, a full disk or a power failure lose no acknowledged outcome
(decisions 17 and 77). ``presage outcomes ingest`` reads the log. A withdrawal is a row of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path
from queue import SimpleQueue

from presage.errors import OutcomeLogError
from presage.serving.outcomes.log_storage import (
    Appended,
    LogStorage,
    LogWriter,
    Report,
    ReportedOutcome,
)
from presage.serving.outcomes.sqlite_log import SqliteLog
from presage.system.files.log_address import LogAddress, log_name

__all__ = [
    "Appended", "OutcomeLog", "ReportedOutcome", "last_position", "read_outcomes", "withdraw",
    "withdrawn_keys",
]  # fmt: skip

_MAX_REPORTS = 256  # per commit
CLOSE_LIMIT_S = 15.0  # SQLite waits 10 s for another writer


class OutcomeLog:
    """Writer of an outcome log with a thread of its own that commits waiting reports together.

    Parameters
    ----------
    open_now : bool
        If False, the log is opened by :meth:`open`, so that a server that cannot start creates
        none.

    Raises
    ------
    OutcomeLogError
        The log cannot be opened or written; nothing of the report is acknowledged then.
    """

    def __init__(self, address: LogAddress, *, open_now: bool = True) -> None:
        self._address = address
        self._reports: SimpleQueue[tuple[Report, Future[Appended]] | None] = SimpleQueue()
        self._closed = False
        self._closing = threading.Lock()
        self._opened: Future[None] = Future()
        self._writer = threading.Thread(target=self._write, name="outcome-log", daemon=True)
        if open_now:
            self.open()

    def open(self) -> None:
        """Open or create the log and start the writer thread; call once.

        Raises
        ------
        OutcomeLogError
            The log cannot be opened; folders that were created for it are removed again.
        """
        self._writer.start()
        self._opened.result()

    def append(
        self,
        outcomes: Sequence[tuple[str, bytes]],
        *,
        reported_by: str,
        received_at_unix_s: float | None = None,
    ) -> Future[Appended]:
        """Append keys and messages; the future completes when they are on disk.

        A known key is not written again. If it belongs to another outcome, for example because two
        clusters use the same job names, the outcome is in ``conflicting``. A cancelled report is
        written completely or not at all.

        Parameters
        ----------
        received_at_unix_s : float, optional
            When they arrived, if not now: those of another log.
        """
        done: Future[Appended] = Future()
        with self._closing:
            if self._closed:
                raise OutcomeLogError(
                    f"outcome log {log_name(self._address)} is closed because the server is "
                    "shutting down; report to another server"
                )
            self._reports.put(((outcomes, reported_by, received_at_unix_s), done))
        return done

    def close(self) -> None:
        """Write the pending reports and stop; later reports raise OutcomeLogError.

        Reports that cannot be written within ``CLOSE_LIMIT_S``, as the database does not answer,
        are given up: they are not acknowledged.
        """
        with self._closing:
            self._closed = True
            self._reports.put(None)
        if self._writer.ident is not None:  # it was opened
            self._writer.join(CLOSE_LIMIT_S)

    def _write(self) -> None:
        try:
            writer = _storage(self._address).open()
        except Exception as error:  # any error must reach open(), which waits
            self._opened.set_exception(error)
            return
        self._opened.set_result(None)
        with closing(writer):
            while (first := self._reports.get()) is not None:
                waiting = [first]
                last = False
                while not (last or self._reports.empty() or len(waiting) == _MAX_REPORTS):
                    following = self._reports.get()
                    last = following is None
                    if following is not None:
                        waiting.append(following)
                _commit(writer, waiting)
                if last:
                    return


def _commit(writer: LogWriter, waiting: Sequence[tuple[Report, Future[Appended]]]) -> None:
    # Cancelled reports are dropped; from here on none can be cancelled.
    waiting = [row for row in waiting if row[1].set_running_or_notify_cancel()]
    try:
        written = writer.commit([report for report, _ in waiting])
    except Exception as failure:  # any error: the thread must go on with later reports
        for _, done in waiting:
            done.set_exception(failure)
        return
    for (_, done), appended in zip(waiting, written, strict=True):
        done.set_result(appended)


def read_outcomes(
    address: LogAddress, *, after: int = 0, limit: int | None = None
) -> Iterator[ReportedOutcome]:
    """Yield the rows of a log after a position in the order of writing, at most ``limit``.

    Raises
    ------
    OutcomeLogError
        The log does not exist or cannot be read.
    """
    return _storage(address).rows(after, limit)


def withdrawn_keys(address: LogAddress, *, after: int = 0) -> list[tuple[int, str]]:
    """Return positions and keys of withdrawals after a position, in the order of writing.

    Raises as :func:`read_outcomes`.
    """
    return _storage(address).withdrawals(after)


def withdraw(
    address: LogAddress, *, keys: Sequence[str] = (), reported_by: Sequence[str] = ()
) -> int:
    """Withdraw outcomes by their keys or by their reporters; return how many were not before.

    A withdrawn outcome stays in the log, and neither trains a release nor gives an offset.

    Raises
    ------
    OutcomeLogError
        The log does not exist or cannot be written.
    """
    return _storage(address).withdraw(keys, reported_by)


def last_position(address: LogAddress) -> int:
    """Return the position of the newest row; 0 without rows. Raises as :func:`read_outcomes`."""
    return _storage(address).last_position()


def _storage(address: LogAddress) -> LogStorage:
    if isinstance(address, Path):
        return SqliteLog(address)
    from presage.serving.outcomes.postgres_log import PostgresLog  # needs psycopg

    return PostgresLog(address, log_name(address))
