"""Row of a table, with parsers whose errors name the file, line and column."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple, TypeVar

from presage.errors import TableError

Value = TypeVar("Value")
MOST_S = 1e12
SECONDS = "a number >= 0 and at most 1e12, as a float keeps milliseconds up to there"
_MOST = 2**63


class Row(NamedTuple):
    """One row; ``number`` counts rows from 0, ``line`` the lines of the file from 1."""

    path: Path
    line: int
    number: int
    cells: Mapping[str, str]

    @property
    def where(self) -> str:
        """File and line, for error messages."""
        return f"{self.path} line {self.line}"

    def text(self, column: str) -> str:
        """Return a text that is not blank."""
        return self.read(column, _parse_text, "text that is not blank")

    def seconds(self, column: str) -> float:
        """Return a time or a duration."""
        return self.read(column, parse_seconds, SECONDS)

    def count(self, column: str) -> int:
        """Return an integer >= 0."""
        return self.read(column, parse_count, "an integer >= 0")

    def gang_size(self, column: str) -> int:
        """Return an integer >= 1."""
        return self.read(column, _parse_gang_size, "an integer >= 1")

    def read(self, column: str, parse: Callable[[str], Value], must_be: str) -> Value:
        """Parse a cell; ``parse`` raises ValueError, KeyError or OverflowError on invalid text.

        Raises
        ------
        TableError
            The cell is missing or invalid; the message names file, line and column.
        """
        text = self.cells.get(column, "")
        try:
            return parse(text)
        except (ValueError, KeyError, OverflowError):
            raise TableError(
                f"{self.where}: {column}={text!r}, must be {must_be}; fix the row, or drop it"
            ) from None


def parse_number(text: str) -> float:
    """Parse any number except NaN."""
    value = float(text)
    if math.isnan(value):
        raise ValueError(text)
    return value


def parse_non_negative(text: str) -> float:
    """Parse a finite number >= 0."""
    value = parse_number(text)
    if not 0 <= value < math.inf:
        raise ValueError(text)
    return value


def parse_seconds(text: str) -> float:
    """Parse a time that a float holds to the millisecond."""
    value = parse_non_negative(text)
    if value > MOST_S:
        raise ValueError(text)
    return value


def parse_int(text: str) -> int:
    """Parse a 64-bit integer, also in the float notation of some tables: "8.0"."""
    try:
        value = int(text)
    except ValueError:
        value = int(text.strip().removesuffix(".0"))
    if abs(value) >= _MOST:
        raise ValueError(text)
    return value


def parse_count(text: str) -> int:
    """Parse an integer >= 0."""
    value = parse_int(text)
    if value < 0:
        raise ValueError(text)
    return value


def _parse_gang_size(text: str) -> int:
    value = parse_int(text)
    if value < 1:
        raise ValueError(text)
    return value


def _parse_text(text: str) -> str:
    if not text.strip():
        raise ValueError(text)
    return text
