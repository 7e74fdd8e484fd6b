"""URLs of journals: SQLite files and PostgreSQL databases."""

from __future__ import annotations

from presage.errors import ConfigError
from presage.schedulers.live.controller.journal.journal_sqlite import SqliteStore
from presage.schedulers.live.controller.journal.journal_store import Store

_SQLITE = "sqlite:///"
_POSTGRES = ("postgresql://", "postgres://")


def open_store(url: str) -> Store:
    """Open the database at a URL or path.

    Raises
    ------
    ConfigError
        The URL is not valid, psycopg is not installed, or another controller has it open.
    """
    if url.startswith(_POSTGRES):
        try:
            from presage.schedulers.live.controller.journal.journal_postgres import PostgresStore
        except ImportError as error:
            raise ConfigError(
                f"a journal on PostgreSQL needs psycopg ({error}); pip install 'psycopg[binary]'"
            ) from error
        return PostgresStore(url)
    path = url.removeprefix(_SQLITE)
    if not path or "://" in path or "\0" in path:
        raise ConfigError(
            # Without a password.
            f"journal {url.rpartition('@')[2]!r} is not valid; give a path, sqlite:///PATH or "
            "postgresql://USER@HOST/DATABASE"
        )
    return SqliteStore(path)
