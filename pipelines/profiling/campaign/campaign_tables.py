"""Tables of a campaign on disk: its complete state."""

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
    """Tables in a folder, read once and written after every added row."""

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
        """Return the rows of a table whose columns have these values."""
        rows: list[Row] = self._data[name].to_pylist()
        return [row for row in rows if all(row[key] == value for key, value in where.items())]

    def values(self, name: str, column: str) -> set[str]:
        """Return the distinct values of a text column."""
        return set(self._data[name].column(column).unique().to_pylist())

    def add(self, name: str, rows: Sequence[Row]) -> None:
        """Append rows and write the table atomically."""
        path = self._folder / f"{name}.parquet"
        added = tables.from_rows(tables.CAMPAIGN_TABLES[name], rows, source=str(path))
        self._data[name] = pa.concat_tables([self._data[name], added]).combine_chunks()
        tables.write(tables.CAMPAIGN_TABLES[name], self._data[name], path)

    def replace(self, name: str, rows: Sequence[Row]) -> None:
        """Replace all rows of the table."""
        path = self._folder / f"{name}.parquet"
        self._data[name] = tables.from_rows(tables.CAMPAIGN_TABLES[name], rows, source=str(path))
        tables.write(tables.CAMPAIGN_TABLES[name], self._data[name], path)

    def write_missing(self) -> None:
        """Write tables without rows, so that readers find all tables."""
        for name, table in tables.CAMPAIGN_TABLES.items():
            path = self._folder / f"{name}.parquet"
            if not path.exists():
                tables.write(table, self._data[name], path)


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Lock the folder against other campaigns, which would overwrite rows.

    Raises
    ------
    ProfilingError
        Another process holds the lock, or the folder cannot be created or written to.
    """
    import fcntl  # not on Windows, where other commands still run

    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise ProfilingError(
            f"{folder}: cannot be created or read as a folder ({error.strerror}); name another "
            "folder"
        ) from error
    try:
        if not os.access(folder, os.W_OK):
            raise ProfilingError(
                f"{folder}: no permission to write into the folder; name another folder"
            )
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ProfilingError(
                f"{folder}: in use by another campaign; wait for it to end, or name another folder"
            ) from error
        yield
    finally:
        os.close(descriptor)
