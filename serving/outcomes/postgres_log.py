"""Outcome log in a PostgreSQL database that servers of several machines share (decision 77)."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from presage.errors import OutcomeLogError, one_line
from presage.serving.outcomes.log_storage import Appended, Report, ReportedOutcome

# Texts are bytes: PostgreSQL's text stores no zero bytes, and keys may be of any length.
_SCHEMA = """
CREATE TABLE IF NOT EXISTS presage_outcomes (
    position bigint PRIMARY KEY,
    idempotency_key bytea NOT NULL,
    received_at_unix_s double precision NOT NULL,
    reported_by bytea NOT NULL,
    message bytea NOT NULL
);
CREATE UNIQUE INDEX IF NOT EXISTS presage_outcomes_key
    ON presage_outcomes (sha256(idempotency_key));
CREATE TABLE IF NOT EXISTS presage_withdrawals (
    position bigint PRIMARY KEY,
    idempotency_key bytea NOT NULL,
    withdrawn_at_unix_s double precision NOT NULL
);
CREATE UNIQUE INDEX IF NOT EXISTS presage_withdrawals_key
    ON presage_withdrawals (sha256(idempotency_key));
CREATE OR REPLACE FUNCTION presage_never_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION 'an outcome is never changed or removed'; END $$;
CREATE OR REPLACE TRIGGER never_changed BEFORE UPDATE OR DELETE OR TRUNCATE
    ON presage_outcomes FOR EACH STATEMENT EXECUTE FUNCTION presage_never_changed();
"""
_EXISTS = "SELECT to_regclass('presage_outcomes') IS NOT NULL"
# Writers commit one after the other, so that positions have no gaps, and a reader never sees one
# before a smaller one. Any constant that no other user of the database locks.
_LOCK = "SELECT pg_advisory_xact_lock(7274695817350)"
_KNOWN = """
SELECT new.number, old.message = new.message
FROM unnest(%s::bytea[], %s::bytea[]) WITH ORDINALITY AS new(key, message, number)
JOIN presage_outcomes old ON sha256(old.idempotency_key) = sha256(new.key)
"""
_APPEND = """
INSERT INTO presage_outcomes (position, idempotency_key, received_at_unix_s, reported_by, message)
SELECT (SELECT coalesce(max(position), 0) FROM presage_outcomes) + new.number,
    new.key, %s, %s, new.message
FROM unnest(%s::bytea[], %s::bytea[]) WITH ORDINALITY AS new(key, message, number)
"""
_SELECT = """
SELECT position, idempotency_key, received_at_unix_s, reported_by, message
FROM presage_outcomes WHERE position > %s ORDER BY position LIMIT %s
"""
_LAST = "SELECT coalesce(max(position), 0) FROM presage_outcomes"
_WITHDRAW = """
INSERT INTO presage_withdrawals (position, idempotency_key, withdrawn_at_unix_s)
SELECT (SELECT coalesce(max(position), 0) FROM presage_withdrawals)
    + row_number() OVER (ORDER BY old.position), old.idempotency_key, %s
FROM presage_outcomes old
WHERE {chosen} AND NOT EXISTS (
    SELECT FROM presage_withdrawals gone
    WHERE sha256(gone.idempotency_key) = sha256(old.idempotency_key)
)
"""
_BY_KEY, _BY_REPORTER = "sha256(old.idempotency_key) = sha256(%s)", "old.reported_by = %s"
_SELECT_WITHDRAWN = """
SELECT position, idempotency_key FROM presage_withdrawals WHERE position > %s ORDER BY position
"""
_SETTINGS = """
SET statement_timeout = '10s';
SET synchronous_commit = on;
SET default_transaction_isolation = 'read committed'
"""
_LIMIT_S = 10  # of a connection, and of a statement that waits for another writer
_PAGE_ROWS = 1_000


class PostgresLog:
    """Log in a database; see :class:`~presage.serving.outcomes.log_storage.LogStorage`.

    Parameters
    ----------
    url : str
        ``postgresql://`` URL. A password is better in PGPASSFILE than in it.
    name : str
        The log in messages, without a password.
    """

    def __init__(self, url: str, name: str) -> None:
        self._url, self._name = url, name

    def open(self) -> PostgresWriter:
        """Create the tables if they are missing, and connect."""
        return PostgresWriter(self._url, self._name)

    def rows(self, after: int, limit: int | None) -> Iterator[ReportedOutcome]:
        """Yield rows after a position, in pages."""
        with self._reading() as database:
            left = limit
            while left is None or left > 0:
                count = _PAGE_ROWS if left is None else min(left, _PAGE_ROWS)
                page = database.execute(_SELECT, (after, count), binary=True).fetchall()
                for position, key, at_s, reporter, message in page:
                    yield ReportedOutcome(position, _text(key), at_s, _text(reporter), message)
                if len(page) < count:
                    return
                after, left = page[-1][0], None if left is None else left - len(page)

    def withdrawals(self, after: int) -> list[tuple[int, str]]:
        """Return positions and keys of withdrawals after a position."""
        with self._reading() as database:
            found = database.execute(_SELECT_WITHDRAWN, (after,)).fetchall()
            return [(position, _text(key)) for position, key in found]

    def withdraw(self, keys: Sequence[str], reported_by: Sequence[str]) -> int:
        """Withdraw outcomes of an existing log."""
        chosen = [(_BY_KEY, _bytes(key)) for key in keys]
        chosen += [(_BY_REPORTER, _bytes(name)) for name in reported_by]
        with self._reading() as database:
            database.execute(_LOCK)
            now_s = time.time()
            counts = [
                database.execute(_WITHDRAW.format(chosen=where), (now_s, value)).rowcount
                for where, value in chosen
            ]
            database.commit()
            return sum(counts)

    def last_position(self) -> int:
        """Return the position of the newest row."""
        with self._reading() as database:
            row = database.execute(_LAST).fetchone()
            return int(row[0])

    @contextmanager
    def _reading(self) -> Iterator[Any]:
        """Yield a connection to an existing log, in a transaction."""
        import psycopg

        try:
            with _connected(self._url, self._name) as database:
                if not database.execute(_EXISTS).fetchone()[0]:
                    raise OutcomeLogError(
                        f"outcome log {self._name} does not exist; give the URL of the server's "
                        "--outcomes"
                    )
                yield database
        except psycopg.Error as error:
            raise OutcomeLogError(
                f"outcome log {self._name} cannot be used ({one_line(error)}); check the URL, and "
                "that the database accepts connections"
            ) from error


class PostgresWriter:
    """Connection that writes; it connects again after a failure."""

    def __init__(self, url: str, name: str) -> None:
        self._url, self._name = url, name
        self._database: Any = self._open()

    def commit(self, reports: Sequence[Report]) -> list[Appended]:
        """Write reports in one transaction, on a new connection if the last one is lost."""
        import psycopg

        if self._database.closed:
            self._database = self._open()
        try:
            with self._database.transaction():
                self._database.execute(_LOCK)
                return [_append(self._database, report) for report in reports]
        except Exception as error:  # any error, also of a text that cannot be stored
            if isinstance(error, psycopg.OperationalError):
                self._database.close()
            raise self._error("written", error) from error

    def close(self) -> None:
        """Close the connection."""
        self._database.close()

    def _open(self) -> Any:
        import psycopg

        try:
            database = _connected(self._url, self._name, autocommit=True)
            try:
                # A role that may only read and insert can use an existing log.
                if not database.execute(_EXISTS).fetchone()[0]:
                    with database.transaction():
                        database.execute(_LOCK)
                        database.execute(_SCHEMA)
            except psycopg.Error:
                database.close()
                raise
        except psycopg.Error as error:
            raise self._error("opened", error) from error
        return database

    def _error(self, operation: str, error: Exception) -> OutcomeLogError:
        return OutcomeLogError(
            f"outcome log {self._name} cannot be {operation} ({one_line(error)}); check the "
            "database, or give another log with --outcomes"
        )


def _connected(url: str, name: str, *, autocommit: bool = False) -> Any:
    import psycopg
    from psycopg.conninfo import conninfo_to_dict

    try:
        given: dict[str, Any] = conninfo_to_dict(url)
    except psycopg.ProgrammingError:  # its text may have a part of the password
        given = {}
    places = [str(given.get(part, "")) for part in ("host", "port", "dbname")]
    if not given or any("@" in place for place in places):  # the password ended too early
        raise OutcomeLogError(
            f"outcome log {name} cannot be used: its URL is not valid; write special characters of "
            "the password as %XX, or use PGPASSFILE"
        ) from None
    limits = {
        "connect_timeout": _LIMIT_S, "keepalives_idle": _LIMIT_S, "keepalives_interval": 5,
        "keepalives_count": 2, "tcp_user_timeout": 1000 * _LIMIT_S,
    }  # fmt: skip
    limits = {key: value for key, value in limits.items() if key not in given}
    database = psycopg.connect(url, autocommit=True, **limits)
    try:
        # Not as options of the connection: those of the URL would be lost.
        database.execute(_SETTINGS)
        database.autocommit = autocommit
    except psycopg.Error:
        database.close()
        raise
    return database


def _append(database: Any, report: Report) -> Appended:
    outcomes, reported_by, received_at_s = report
    at_s = time.time() if received_at_s is None else received_at_s
    first: dict[bytes, int] = {}  # position of each key in the report
    for position, (key, _) in enumerate(outcomes):
        first.setdefault(_bytes(key), position)
    keys, messages = list(first), [outcomes[position][1] for position in first.values()]
    found = database.execute(_KNOWN, (keys, messages)).fetchall() if keys else []
    is_same = {int(number) - 1: bool(same) for number, same in found}  # by index in keys
    new = [i for i in range(len(keys)) if i not in is_same]
    if new:
        added = [keys[i] for i in new], [messages[i] for i in new]
        database.execute(_APPEND, (at_s, _bytes(reported_by), *added))
    stored = {key: messages[i] for i, key in enumerate(keys) if is_same.get(i, True)}
    conflicting = [
        position
        for position, (key, message) in enumerate(outcomes)
        if stored.get(_bytes(key)) != message
    ]
    written = tuple(first[keys[i]] for i in new)
    duplicates = len(outcomes) - len(written) - len(conflicting)
    return Appended(len(written), duplicates, tuple(conflicting), written)


def _bytes(text: str) -> bytes:
    return text.encode()


def _text(data: bytes) -> str:
    return data.decode(errors="backslashreplace")
