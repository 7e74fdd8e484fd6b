"""A csv file's header and rows, plain or gzipped."""

from __future__ import annotations

import csv
import gzip
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from presage.errors import TableError
from presage.schedulers.traces.row import Row

_GZIPPED = b"\x1f\x8b"


@contextmanager
def opened(path: Path) -> Iterator[TextIO]:
    """A text file, whether it is gzipped or not.

    Raises
    ------
    TableError
        It is missing, or no text, or no csv where it is read as one.
    """
    try:
        with path.open("rb") as file:
            packed = file.read(2) == _GZIPPED
        unpack = gzip.open if packed else open
        with unpack(path, "rt", newline="", encoding="utf-8-sig") as text:
            yield text
    except (UnicodeDecodeError, csv.Error, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise TableError(f"{path}: is no csv or log, plain or .gz ({error})") from None
    except OSError as error:
        raise TableError(f"{path}: cannot be read ({error.strerror}); name a file") from None


class Table:
    """The csv of an open file.

    Raises
    ------
    TableError
        There is no header, or a column is there twice.
    """

    def __init__(self, path: Path, file: Iterable[str]) -> None:
        self._path, self._lines = path, csv.reader(file)
        self.header = [name.strip() for name in next(self._lines, [])]
        if not any(self.header):
            raise TableError(f"{path}: has no header; its first line must name the columns")
        twice = [name for i, name in enumerate(self.header) if name in self.header[:i]]
        if twice:
            raise TableError(f"{path}: two columns are called {twice[0]!r}; drop one")

    def rows(self) -> Iterator[Row]:
        """What is below the header; empty lines are no rows.

        Raises
        ------
        TableError
            A row has more or fewer cells than the header.
        """
        number = 0
        for cells in self._lines:
            if not cells:
                continue
            row = Row(
                self._path,
                self._lines.line_num,
                number,
                dict(zip(self.header, cells, strict=False)),
            )
            if len(cells) != len(self.header):
                raise TableError(
                    f"{row.where}: {len(cells)} cells, and the header has {len(self.header)}; "
                    "mend the row, or drop it"
                )
            yield row
            number += 1
