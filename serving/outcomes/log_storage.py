"""Rows of an outcome log, and what a place that stores them offers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

# Keys and messages, their reporter, and when they arrived (now if it is None).
Report = tuple[Sequence[tuple[str, bytes]], str, float | None]


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


class LogWriter(Protocol):
    """Open log, which one thread writes."""

    def commit(self, reports: Sequence[Report]) -> list[Appended]:
        """Write reports in one transaction, which is on disk when the call returns.

        Any error means that nothing is known to be written.
        """

    def close(self) -> None:
        """Close the log."""


class LogStorage(Protocol):
    """Place of a log. Its methods raise OutcomeLogError if it cannot be read or written."""

    def open(self) -> LogWriter:
        """Create the log if it is missing, and open it for writing."""

    def rows(self, after: int, limit: int | None) -> Iterator[ReportedOutcome]:
        """Yield rows after a position, in the order of writing."""

    def withdrawals(self, after: int) -> list[tuple[int, str]]:
        """Return positions and keys of withdrawals after a position."""

    def withdraw(self, keys: Sequence[str], reported_by: Sequence[str]) -> int:
        """Withdraw outcomes; return how many were not before."""

    def last_position(self) -> int:
        """Return the position of the newest row; 0 without rows."""
