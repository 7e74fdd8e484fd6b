"""Storage of a journal in PostgreSQL, with a lock that belongs to the writing connection."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

from presage.errors import ConfigError, JournalError, UnsureJournalError, one_line
from presage.system.files.data_folder import data_folder

_LOCK_CLASS = 0x70_72_65_73  # "pres": the first of the two numbers of a lock
_LOCK = f"{_LOCK_CLASS}, hashtext(coalesce(current_schema(), ''))"
_LOCK_TIMEOUT_S = 1.0  # until the server notices that the previous holder has ended
# Detect a server that does not respond, and let the server detect a lost controller, in seconds.
_DEFAULTS = {
    "connect_timeout": 10,
    "keepalives_idle": 5,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
}
_SESSION = (
    "SET tcp_keepalives_idle = 5",
    "SET tcp_keepalives_interval = 5",
    "SET tcp_keepalives_count = 3",
    "SET lock_timeout = '10s'",
    "SELECT set_config('synchronous_commit', 'on', false)"
    " WHERE current_setting('synchronous_commit') = 'off'",
)
_HOLDER = """
SELECT concat_ws(' ', nullif(application_name, ''), 'from', coalesce(host(client_addr), 'a socket'),
    'since', date_trunc('second', backend_start)::text)
FROM pg_locks JOIN pg_stat_activity USING (pid)
WHERE locktype = 'advisory' AND granted AND classid = ? AND objsubid = 2
    AND pg_locks.database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND objid = (hashtext(coalesce(current_schema(), ''))::bigint & 4294967295)::oid
"""
_FIXES = {
    psycopg.errors.DiskFull: "free space on its server's disk",
    psycopg.errors.ReadOnlySqlTransaction: "use the server that accepts writes",
    psycopg.errors.InsufficientPrivilege: (
        "grant its user the rights to create and write tables in the schema"
    ),
    psycopg.errors.UniqueViolation: "another controller has written to it: stop this controller",
    psycopg.errors.LockNotAvailable: "end the session that has locked its tables",
}
_CONNECT = "check that the server runs and can be reached, and that user and password are correct"


class PostgresStore:
    """Store with one connection, which holds the lock."""

    big = "BIGINT"
    may_lose_lock = True  # with its connection

    def __init__(self, url: str) -> None:
        try:
            options = conninfo_to_dict(url)
        except psycopg.Error:
            # Its message may contain the password.
            raise ConfigError(
                f"journal {url.rpartition('@')[2]!r}: not postgresql://USER@HOST/DATABASE; escape "
                "special characters as %XX, and put the password in ~/.pgpass or PGPASSWORD"
            ) from None
        self._options: dict[str, Any] = {**_DEFAULTS, **options}
        host, port = (options.get(name) for name in ("host", "port"))
        # The database is on another machine.
        self.key_file = data_folder() / "cluster" / "journal.key"
        self.where = (
            f"postgresql://{host or 'localhost'}{f':{port}' if port else ''}"
            f"/{options.get('dbname') or ''}"
        )
        self._connection: psycopg.Connection[tuple[Any, ...]] | None = None

    def begin(self) -> bool:
        """Begin a transaction; return whether it is the first on a connection."""
        if self._connection is not None:
            try:
                self._connection.execute("BEGIN")
            except psycopg.Error as error:
                if not self._connection.closed:
                    raise self._cannot(error) from error
                self.close()  # it broke since the last transaction; nothing is lost
            else:
                return False
        try:
            self._connect()
            self._connected().execute("BEGIN")
        except psycopg.Error as error:
            self.close()
            raise self._cannot(error) from error
        except BaseException:
            self.close()
            raise
        return True

    def run(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """Run a statement."""
        try:
            done = self._connected().execute(statement.replace("?", "%s"), values or None)
            return done.fetchall() if done.description else []
        except psycopg.Error as error:
            raise self._cannot(error) from error

    def run_many(self, statement: str, rows: Sequence[tuple[object, ...]]) -> None:
        """Run a statement for each row, in one message."""
        try:
            with self._connected().cursor() as cursor:
                cursor.executemany(statement.replace("?", "%s"), rows)
        except psycopg.Error as error:
            raise self._cannot(error) from error

    def commit(self) -> None:
        """Commit; the data is on the server's disk on return."""
        try:
            self._connected().execute("COMMIT")
        except psycopg.Error as error:
            if not self._connected().closed:
                raise self._cannot(error) from error
            raise UnsureJournalError(
                f"journal {self.where}: the connection broke while it was written "
                f"({one_line(error)}); open the journal again and read it"
            ) from error

    def rollback(self) -> None:
        """Roll back uncommitted changes."""
        idle = psycopg.pq.TransactionStatus.IDLE
        if self._connection is not None and self._connection.info.transaction_status != idle:
            with suppress(psycopg.Error):
                self._connection.execute("ROLLBACK")

    def settle(self) -> None:
        """Do nothing: the server does it with ``VACUUM``."""

    def tables(self) -> set[str]:
        """Return the names of the tables in the current schema."""
        found = self.run("SELECT tablename FROM pg_tables WHERE schemaname = current_schema()")
        return {name for (name,) in found}

    def close(self) -> None:
        """Release the lock and close the connection."""
        if self._connection is not None:
            with suppress(psycopg.Error):
                self._connection.execute("SELECT pg_advisory_unlock_all()")
            self._connection.close()
            self._connection = None

    def _connected(self) -> psycopg.Connection[tuple[Any, ...]]:
        assert self._connection is not None
        return self._connection

    def _connect(self) -> None:
        name = f"presage controller, process {os.getpid()} on {socket.gethostname()}"
        self._connection = connection = psycopg.connect(
            autocommit=True, **{"application_name": name, **self._options}
        )
        for statement in _SESSION:
            connection.execute(statement)
        until_s = time.monotonic() + _LOCK_TIMEOUT_S
        while not self.run(f"SELECT pg_try_advisory_lock({_LOCK})")[0][0]:
            if time.monotonic() > until_s:
                holders = self.run(_HOLDER, _LOCK_CLASS)
                raise ConfigError(
                    f"journal {self.where} is open in "
                    f"{one_line(holders[0][0]) if holders else 'another process'}; stop that "
                    "controller, or use another journal"
                )
            time.sleep(0.05)

    def _cannot(self, error: psycopg.Error) -> JournalError:
        is_closed = self._connection is None or self._connection.closed
        fix = _CONNECT if is_closed else _FIXES.get(type(error), "check its server")
        return JournalError(f"journal {self.where} cannot be used ({one_line(error)}); {fix}")
