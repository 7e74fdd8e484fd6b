"""Journal of a leader: one JSON object a line, each on disk before what it says is announced."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from presage.errors import ElasticError
from presage.system.files.atomic_file import sync_folder
from presage.system.files.user_file import read_regular

Record = dict[str, Any]
_MAX_BYTES = 1 << 28


class Journal:
    """Append-only file of records.

    Parameters
    ----------
    path : Path
        File; it is created if it is missing. Its valid records are in ``records``.

    Raises
    ------
    ElasticError
        The file cannot be read, or a line other than the last one is not a record.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.records, self._size = _replay(path)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.ftruncate(self._file, self._size)  # without a record that was interrupted
        sync_folder(path.parent)

    def append(self, record: Record) -> None:
        """Write a record; it is on disk on return.

        Raises
        ------
        OSError
            It cannot be written, for example because the disk is full. The journal is unchanged.
        """
        line = json.dumps(record).encode() + b"\n"
        try:
            written = os.pwrite(self._file, line, self._size)
            if written < len(line):
                raise OSError(28, "No space left on device", str(self.path))
            os.fsync(self._file)
        except OSError:
            os.ftruncate(self._file, self._size)
            raise
        self._size += len(line)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def _replay(path: Path) -> tuple[list[Record], int]:
    """Return the records of a file, and its size without an interrupted last line."""
    try:
        content = read_regular(path, _MAX_BYTES)
    except FileNotFoundError:
        return [], 0
    except OSError as error:
        raise ElasticError(f"{path}: cannot be read: {error.strerror}") from None
    complete = content[: content.rfind(b"\n") + 1]
    records = []
    for number, line in enumerate(complete.splitlines(), 1):
        try:
            record = json.loads(line)
        except ValueError:
            raise ElasticError(f"{path}:{number}: not a record; restore the file") from None
        if not isinstance(record, dict):
            raise ElasticError(f"{path}:{number}: not a record; restore the file")
        records.append(record)
    return records, len(complete)
