"""A row of a table: text by the name of its column, read with errors that name the place."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple, TypeVar

from presage.errors import TableError

Value = TypeVar("Value")
MOST_S = 1e12
SECONDS = "a number >= 0 and at most 1e12, or a float loses its milliseconds"
_MOST = 2**63


class Row(NamedTuple):
    """One line; ``number`` counts rows from 0, ``line`` the lines of the file from 1."""

    path: Path
    line: int
    number: int
    cells: Mapping[str, str]

    @property
    def where(self) -> str:
        """File and line."""
        return f"{self.path} line {self.line}"

    def text(self, column: str) -> str:
        """What is there, which must be something."""
        return self.read(column, _some, "there")

    def seconds(self, column: str) -> float:
        """A time or a duration."""
        return self.read(column, seconds, SECONDS)

    def whole(self, column: str) -> int:
        """A whole number >= 0."""
        return self.read(column, count, "a whole number >= 0")

    def gang(self, column: str) -> int:
        """A whole number >= 1."""
        return self.read(column, _gang, "a whole number >= 1")

    def read(self, column: str, parse: Callable[[str], Value], must_be: str) -> Value:
        """A cell by a function that raises ValueError, KeyError or OverflowError if it cannot.

        Raises
        ------
        TableError
            It is missing or wrong; names file, line and column.
        """
        text = self.cells.get(column, "")
        try:
            return parse(text)
        except (ValueError, KeyError, OverflowError):
            raise TableError(
                f"{self.where}: {column}={text!r}, must be {must_be}; mend the row, or drop it"
            ) from None


def number(text: str) -> float:
    """Any number but NaN."""
    value = float(text)
    if math.isnan(value):
        raise ValueError(text)
    return value


def not_negative(text: str) -> float:
    """A finite number >= 0."""
    value = number(text)
    if not 0 <= value < math.inf:
        raise ValueError(text)
    return value


def seconds(text: str) -> float:
    """A time that a float holds to the millisecond."""
    value = not_negative(text)
    if value > MOST_S:
        raise ValueError(text)
    return value


def whole(text: str) -> int:
    """A whole number of 64 bits, also as tables write it that count in floats: "8.0"."""
    try:
        value = int(text)
    except ValueError:
        value = int(text.strip().removesuffix(".0"))
    if abs(value) >= _MOST:
        raise ValueError(text)
    return value


def count(text: str) -> int:
    """A whole number >= 0."""
    value = whole(text)
    if value < 0:
        raise ValueError(text)
    return value


def _gang(text: str) -> int:
    value = whole(text)
    if value < 1:
        raise ValueError(text)
    return value


def _some(text: str) -> str:
    if not text.strip():
        raise ValueError(text)
    return text
