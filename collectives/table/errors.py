"""Errors of tables of decisions."""

from __future__ import annotations

from presage.errors import PresageError


class TableError(PresageError):
    """A table of decisions cannot be created or read; the message has its path."""


class TableInUseError(TableError):
    """A living process owns the table of this job and rank."""


class TableUnavailableError(TableError):
    """The owner has closed the table, or died while it wrote."""
