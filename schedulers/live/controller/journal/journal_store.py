"""Interface of the databases that can hold a journal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol


class Store(Protocol):
    """Database and the lock on it; every method may raise JournalError.

    Attributes
    ----------
    where : str
        Name in messages, without a password.
    big : str
        SQL type of 64-bit integers.
    may_lose_lock : bool
        Whether another process can get the lock while this process runs.
    key_file : Path
        Default path of the journal's key.
    """

    where: str
    key_file: Path
    big: str
    may_lose_lock: bool

    def begin(self) -> bool:
        """Begin a transaction under the lock; return whether lock and connection are new.

        Raises ConfigError if another process has the lock.
        """

    def run(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """Run a statement, with ``?`` for values."""

    def run_many(self, statement: str, rows: Sequence[tuple[object, ...]]) -> None:
        """Run a statement for each row."""

    def commit(self) -> None:
        """Commit the transaction. Raises UnsureJournalError if the outcome is unknown."""

    def rollback(self) -> None:
        """Roll back uncommitted changes. Raises nothing."""

    def settle(self) -> None:
        """Move written data to its final place, outside a transaction. Raises nothing.

        Previous content, such as secrets of an earlier version, is removed from the disk.
        """

    def tables(self) -> set[str]:
        """Return the names of the tables."""

    def close(self) -> None:
        """Close the database and release the lock. Raises nothing."""
