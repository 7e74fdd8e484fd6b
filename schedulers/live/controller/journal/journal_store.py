"""What a journal needs of a database."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol


class Store(Protocol):
    """A database, and the lock on it; every method raises JournalError.

    Attributes
    ----------
    where : str
        What messages call it, without its password.
    big : str
        Its type of 64-bit integers.
    may_lose_lock : bool
        Whether another may get the lock while this one lives.
    key_file : Path
        Where the journal's key is by default.
    """

    where: str
    key_file: Path
    big: str
    may_lose_lock: bool

    def begin(self) -> bool:
        """Begin a transaction under the lock; whether lock and connection had to be taken anew.

        Raises ConfigError where another process has the lock.
        """

    def run(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """Run a statement, with ``?`` for values."""

    def run_many(self, statement: str, rows: Sequence[tuple[object, ...]]) -> None:
        """Run a statement for each row."""

    def commit(self) -> None:
        """Raises UnsureJournalError where nobody knows whether it was done."""

    def rollback(self) -> None:
        """Undo what was not committed; raises nothing."""

    def settle(self) -> None:
        """Outside a transaction: put what is written where it belongs; raises nothing.

        What was there before, such as secrets of an earlier version, is gone then.
        """

    def tables(self) -> set[str]:
        """Names of those that it has."""

    def close(self) -> None:
        """Let go of database and lock; raises nothing."""
