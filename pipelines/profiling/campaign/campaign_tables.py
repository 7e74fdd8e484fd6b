"""The tables of a campaign on disk: all of its state."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from presage.errors import ProfilingError
from presage.features.tables import schemas as tables
from presage.pipelines.profiling.running.work import Row


class CampaignTables:
    """Tables in a folder, read at once and written after every row that is added."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._data: dict[str, pa.Table] = {}
        for name, table in tables.CAMPAIGN_TABLES.items():
            path = folder / f"{name}.parquet"
            if path.exists():
                self._data[name] = tables.read(table, path)
            else:
                self._data[name] = tables.from_rows(table, [], source=str(path))

    def rows(self, name: str, **where: str) -> list[Row]:
        """Rows of a table whose columns have those values."""
        rows: list[Row] = self._data[name].to_pylist()
        return [row for row in rows if all(row[key] == value for key, value in where.items())]

    def values(self, name: str, column: str) -> set[str]:
        """Distinct values of a text column."""
        return set(self._data[name].column(column).unique().to_pylist())

    def add(self, name: str, rows: Sequence[Row]) -> None:
        """Append rows and write the table; a reader never sees half of them."""
        path = self._folder / f"{name}.parquet"
        added = tables.from_rows(tables.CAMPAIGN_TABLES[name], rows, source=str(path))
        self._data[name] = pa.concat_tables([self._data[name], added]).combine_chunks()
        tables.write(tables.CAMPAIGN_TABLES[name], self._data[name], path)

    def replace(self, name: str, rows: Sequence[Row]) -> None:
        """Write the table anew, with these rows alone."""
        path = self._folder / f"{name}.parquet"
        self._data[name] = tables.from_rows(tables.CAMPAIGN_TABLES[name], rows, source=str(path))
        tables.write(tables.CAMPAIGN_TABLES[name], self._data[name], path)

    def write_missing(self) -> None:
        """Write tables that have no row yet, so that readers find all of them."""
        for name, table in tables.CAMPAIGN_TABLES.items():
            path = self._folder / f"{name}.parquet"
            if not path.exists():
                tables.write(table, self._data[name], path)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other campaigns off this folder: two would overwrite each other's rows.

    Raises
    ------
    ProfilingError
        Another process holds it; or it cannot be made, or not be written to.
    """
    import fcntl  # not on Windows, where other commands still run

    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise ProfilingError(
            f"{folder}: not a folder that can be made or read ({error.strerror}); name another"
        ) from error
    try:
        if not os.access(folder, os.W_OK):
            raise ProfilingError(f"{folder}: this user may not write into it; name another folder")
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ProfilingError(
                f"{folder}: another campaign is measuring into this folder; "
                "wait for it to end, or name another folder"
            ) from error
        yield
    finally:
        os.close(descriptor)
