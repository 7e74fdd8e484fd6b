"""Tables with a checked schema: parquet files with typed columns and constraints on rows."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from presage.errors import TableError
from presage.system.files.atomic_file import write_atomically
from presage.system.text.known_names import did_you_mean

if TYPE_CHECKING:
    import pandas as pd

REQUIRED = object()  # marks a column that every file must have


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its type, its meaning, and the values it may hold.

    ``absent`` is the value for every row of a file that was written before the column was
    introduced; without ``absent``, such a file is rejected.
    """

    name: str
    type: pa.DataType
    meaning: str
    minimum: float | None = None
    above: float | None = None  # an exclusive minimum
    nullable: bool = False
    absent: Any = REQUIRED


@dataclass(frozen=True, slots=True)
class Constraint:
    """A constraint on several columns of a row; ``broken`` marks the rows that violate it."""

    column: str  # column that an error names
    rule: str
    broken: Callable[[pa.Table], pa.ChunkedArray]


@dataclass(frozen=True, slots=True)
class Table:
    """A named list of columns, the unique key, and the constraints on every row."""

    name: str
    key: tuple[str, ...]
    columns: tuple[Column, ...]
    constraints: tuple[Constraint, ...] = ()

    @property
    def schema(self) -> pa.Schema:
        """The pyarrow schema."""
        return pa.schema([pa.field(c.name, c.type, nullable=c.nullable) for c in self.columns])


def check(table: Table, data: pa.Table, *, source: str) -> pa.Table:
    """Return ``data`` in the schema's column order.

    Raises
    ------
    TableError
        A column is missing, extra or of another type; a value is null, NaN, infinite or below
        its minimum; a row violates a constraint; a key occurs twice. The message names the file,
        the column and the first bad row.
    """
    data = _with_absent(table, data)
    found, expected = data.column_names, [c.name for c in table.columns]
    missing = [name for name in expected if name not in found]
    if missing:
        hint = did_you_mean(missing[0], found, otherwise="rename or add it.")
        raise TableError(
            f"{source}: no column {missing[0]!r} ({len(missing)} of {len(expected)} missing); "
            f"{hint} Table {table.name!r} has: {', '.join(expected)}"
        )
    extra = [name for name in found if name not in expected]
    if extra:
        raise TableError(
            f"{source}: column {extra[0]!r} does not belong to table {table.name!r}; "
            "remove it, or declare it in features/tables/schemas.py"
        )
    data = data.select(expected)
    for column in table.columns:
        _check_column(column, data.column(column.name), source=source)
    named = {column.name: column for column in table.columns}
    for law in table.constraints:
        _raise_if_any(
            law.broken(data), named[law.column], data.column(law.column), law.rule, source
        )
    _check_key(table, data, source=source)
    return data.cast(table.schema)


def _with_absent(table: Table, data: pa.Table) -> pa.Table:
    for column in table.columns:
        if column.absent is not REQUIRED and column.name not in data.column_names:
            values = pa.repeat(pa.scalar(column.absent, type=column.type), data.num_rows)
            data = data.append_column(column.name, values)
    return data


def _check_column(column: Column, values: pa.ChunkedArray, *, source: str) -> None:
    if values.type != column.type:
        raise TableError(
            f"{source}: column {column.name!r} is {values.type}, must be {column.type}; "
            f"cast it before writing ({column.meaning})"
        )
    if not column.nullable and values.null_count:
        row = values.is_null().index(True).as_py()
        raise TableError(
            f"{source}: row {row}, column {column.name!r} must not be empty "
            f"({column.meaning}); remove the row"
        )
    if column.type == pa.float64():
        _raise_if_any(
            pc.invert(pc.is_finite(values)), column, values, "must be a finite number", source
        )
    if column.minimum is not None:
        below = pc.less(values, pa.scalar(column.minimum, type=column.type))
        _raise_if_any(below, column, values, f"must be >= {column.minimum:g}", source)
    if column.above is not None:
        below = pc.less_equal(values, pa.scalar(column.above, type=column.type))
        _raise_if_any(below, column, values, f"must be > {column.above:g}", source)


def _raise_if_any(
    bad: pa.ChunkedArray, column: Column, values: pa.ChunkedArray, rule: str, source: str
) -> None:
    row = bad.index(pa.scalar(True)).as_py()
    if row >= 0:
        value = values[row].as_py()
        raise TableError(
            f"{source}: row {row}, column {column.name!r} is "
            f"{'empty' if value is None else value}, {rule} "
            f"({column.meaning}); measure that row again or remove it"
        )


def _check_key(table: Table, data: pa.Table, *, source: str) -> None:
    groups = data.group_by(list(table.key)).aggregate([([], "count_all")])
    twice = groups.filter(pc.greater(groups.column("count_all"), 1))
    if twice.num_rows:
        first = {name: twice.column(name)[0].as_py() for name in table.key}
        raise TableError(
            f"{source}: {twice.column('count_all')[0].as_py()} rows share the key {first}; "
            "keep one of them"
        )


def from_rows(table: Table, rows: Sequence[Mapping[str, Any]], *, source: str) -> pa.Table:
    """Return a checked table of dictionaries; a missing key has the column's ``absent`` value."""
    names = {c.name for c in table.columns}
    absent = {c.name: c.absent for c in table.columns if c.absent is not REQUIRED}
    for row in rows:
        if unknown := row.keys() - names:
            raise TableError(
                f"{source}: column {min(unknown)!r} does not belong to table {table.name!r}; "
                "remove it, or declare it in features/tables/schemas.py"
            )

    def values(column: Column) -> pa.Array:
        missing = absent.get(column.name)
        return pa.array([row.get(column.name, missing) for row in rows], type=column.type)

    return _from_arrays(table, table.columns, values, source)


def from_frame(table: Table, rows: pd.DataFrame, *, source: str) -> pa.Table:
    """Return a checked table of the columns that belong to it; None and NaN are null."""
    found = [column for column in table.columns if column.name in rows]

    def values(column: Column) -> pa.Array:
        return pa.array(rows[column.name], type=column.type, from_pandas=True)

    return _from_arrays(table, found, values, source)


def _from_arrays(
    table: Table, columns: Sequence[Column], values: Callable[[Column], pa.Array], source: str
) -> pa.Table:
    try:
        data = pa.table({column.name: values(column) for column in columns})
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise TableError(f"{source}: a row does not fit table {table.name!r}: {error}") from error
    return check(table, data, source=source)


def read(table: Table, path: Path) -> pa.Table:
    """Read the table at ``path`` and check it.

    Raises
    ------
    TableError
        The file is missing, is not parquet, or breaks the schema.
    """
    try:
        # Open the file once: pyarrow opens a path for the footer and again for the pages, and
        # would mix two files if the table is replaced in between. From a path it would also
        # derive a column, if a folder is called "share=1".
        with path.open("rb") as file:
            data = pq.read_table(file)
    except FileNotFoundError as error:
        raise TableError(
            f"{path}: no such table; measure it with `presage profile`, or run `dvc repro`"
        ) from error
    except (pa.ArrowInvalid, OSError) as error:
        raise TableError(
            f"{path}: not a readable parquet file ({error}); restore it from git or measure again"
        ) from error
    return check(table, data, source=str(path))


def write(table: Table, data: pa.Table, path: Path) -> None:
    """Write a checked table atomically: a reader sees the old file or the new one.

    Raises
    ------
    TableError
        The data breaks the schema, or cannot be written: disk full, or no permission.
    """
    checked = check(table, data, source=str(path))
    try:
        # zstd and no pandas metadata: the same rows give the same bytes.
        write_atomically(path, lambda to: pq.write_table(checked, to, compression="zstd"))
    except OSError as error:  # pyarrow's error names no file
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise TableError(
            f"{path}: cannot be written ({reason}); the previous file is intact: free disk space, "
            "or name another folder, and run the command again"
        ) from error


def column(data: pa.Table, name: str) -> np.ndarray[Any, np.dtype[Any]]:
    """Return one column as a numpy array; nulls become NaN."""
    values: np.ndarray[Any, np.dtype[Any]] = data.column(name).to_numpy()
    return values
