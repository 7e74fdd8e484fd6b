"""Reader of a CSV file's header and rows, plain or gzipped."""

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
def open_text(path: Path) -> Iterator[TextIO]:
    """Open a text file, gzipped or plain.

    Raises
    ------
    TableError
        The file is missing, is not text, or is not the CSV that the caller reads it as.
    """
    try:
        with path.open("rb") as file:
            is_gzipped = file.read(2) == _GZIPPED
        open_file = gzip.open if is_gzipped else open
        with open_file(path, "rt", newline="", encoding="utf-8-sig") as text:
            yield text
    except (UnicodeDecodeError, csv.Error, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise TableError(f"{path}: is not a CSV file or log, plain or .gz ({error})") from None
    except OSError as error:
        raise TableError(f"{path}: cannot be read ({error.strerror}); name a file") from None


class Table:
    """Table of an open CSV file.

    Raises
    ------
    TableError
        The header is missing or names a column twice.
    """

    def __init__(self, path: Path, file: Iterable[str]) -> None:
        self._path, self._lines = path, csv.reader(file)
        self.header = [name.strip() for name in next(self._lines, [])]
        if not any(self.header):
            raise TableError(f"{path}: has no header; its first line must name the columns")
        duplicates = [name for i, name in enumerate(self.header) if name in self.header[:i]]
        if duplicates:
            raise TableError(f"{path}: duplicate column {duplicates[0]!r}; drop one")

    def rows(self) -> Iterator[Row]:
        """Yield the rows below the header, without empty lines.

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
                    "fix the row, or drop it"
                )
            yield row
            number += 1
