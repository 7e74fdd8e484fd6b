"""Reading of published files: complete, or rejected with a one-line reason."""

from __future__ import annotations

import gzip
import json
import tarfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd

from presage.errors import TableError

DOCS = "see docs/pipeline/importing.md for upstream's location"
UNREADABLE = (OSError, EOFError, zlib.error, ValueError, RecursionError)  # parsers' and gzip's


def read_csv(path: Path, columns: Mapping[str, type]) -> pd.DataFrame:
    """Read a CSV file, gzipped or plain by its suffix; additional columns are ignored.

    Parameters
    ----------
    columns : mapping of str to type
        Required columns: ``str``, ``int`` or ``float``, without empty cells.

    Raises
    ------
    TableError
        The file is missing, corrupt or empty, or a column or a value is not as expected.
    """
    try:
        rows = pd.read_csv(path, dtype={name: str for name, kind in columns.items() if kind is str})
    except UNREADABLE as error:
        raise _unreadable(path, error, f"CSV with {_join_names(columns)}") from error
    return _check_columns(rows, path, columns)


def read_parquet(path: Path, columns: Mapping[str, type]) -> pd.DataFrame:
    """Read a parquet file with the checks of :func:`read_csv`."""
    try:
        rows = pd.read_parquet(path)
    except UNREADABLE as error:
        raise _unreadable(path, error, f"parquet with {_join_names(columns)}") from error
    return _check_columns(rows, path, columns)


def _check_columns(rows: pd.DataFrame, path: Path, columns: Mapping[str, type]) -> pd.DataFrame:
    missing = [name for name in columns if name not in rows.columns]
    if missing:
        raise TableError(
            f"{path}: no column {missing[0]!r}, expected {_join_names(columns)}, "
            f"found {_join_names(list(rows.columns)[:12])}; {DOCS}"
        )
    if rows.empty:
        raise TableError(f"{path}: no rows under {_join_names(columns)}; {DOCS}")
    for name, kind in columns.items():
        rows[name] = _column(rows[name], name, kind, path)
    return rows


def _column(values: pd.Series, name: str, kind: type, path: Path) -> pd.Series:
    if kind is str:
        good = values.notna()
    else:
        numbers = pd.to_numeric(values, errors="coerce")
        good = pd.Series(np.isfinite(numbers), index=values.index)
        if kind is int:
            good &= numbers % 1 == 0
        values = numbers
    if not good.all():
        line = int(np.flatnonzero(~good)[0]) + 2
        raise TableError(
            f"{path}: line {line}, column {name!r} is not {_EXPECTED[kind]}; "
            f"the file is damaged: {DOCS}"
        )
    return values if kind is str else values.astype(kind)


_EXPECTED = {str: "filled", int: "a whole number", float: "a finite number"}


def read_json(path: Path, expected: str) -> dict[str, Any]:
    """Read the object in a JSON file, gzipped or plain by its suffix.

    Raises
    ------
    TableError
        The file is missing, corrupt, or not an object; ``expected`` describes the right content.
    """
    try:
        raw = path.read_bytes()
        content = json.loads(gzip.decompress(raw) if path.suffix == ".gz" else raw)
    except UNREADABLE as error:
        raise _unreadable(path, error, expected) from error
    if not isinstance(content, dict) or not content:
        raise TableError(f"{path}: expected {expected}; {DOCS}")
    return content


def find_files(folder: Path, names: Sequence[str], expected: str) -> list[Path]:
    """Return ``folder`` itself if it is a file, else its files that match a pattern, sorted.

    The first pattern with a match determines the layout.

    Raises
    ------
    TableError
        There is no such file or folder, or no file matches.
    """
    if folder.is_file():
        return [folder]
    if not folder.is_dir():
        raise TableError(f"{folder}: no such file or folder, expected {expected}; {DOCS}")
    for name in names:
        found = sorted(path for path in folder.rglob(name) if path.is_file())
        if measured := [path for path in found if path.suffix != ".dvc"]:  # without DVC pointers
            return measured
    raise TableError(f"{folder}: holds no {' or '.join(names)}, expected {expected}; {DOCS}")


@contextmanager
def unpack(path: Path) -> Iterator[Path]:
    """Yield ``path``, or the unpacked folder of a repository's .tar.gz.

    Raises
    ------
    TableError
        The archive is corrupt, or this Python cannot unpack it safely.
    """
    if not (path.is_file() and path.name.endswith((".tar.gz", ".tgz"))):
        yield path
        return
    if not hasattr(tarfile, "data_filter"):
        raise TableError(
            f"{path}: Python before 3.11.4 cannot unpack archives safely; use an unpacked folder"
        )
    with TemporaryDirectory(prefix="presage-import-") as folder:
        try:
            with tarfile.open(path) as archive:
                archive.extractall(folder, filter="data")
        except (tarfile.TarError, *UNREADABLE) as error:
            raise _unreadable(path, error, "a .tar.gz of the upstream repository") from error
        yield Path(folder)


def _unreadable(path: Path, error: Exception, expected: str) -> TableError:
    why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return TableError(
        f"{path}: cannot be read ({' '.join(why.split())}), expected {expected}; {DOCS}"
    )


def _join_names(names: Sequence[str] | Mapping[str, Any]) -> str:
    return f"columns {', '.join(map(repr, names))}"
