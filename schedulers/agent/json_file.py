"""JSON objects as files: whole or not there, whatever dies while they are written."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

_MOST_BYTES = 16 * 1024 * 1024


def write_json(path: Path, value: Mapping[str, object], *, durable: bool = False) -> None:
    """Put an object in a file's place; a reader sees the one before or this one, whole.

    Parameters
    ----------
    durable : bool
        Whether it is also found there after a loss of power that follows the return. If not, that
        may leave nothing; it does not wait for the disk.

    Raises
    ------
    OSError
        As on a full disk: then the file is what it was.
    TypeError, ValueError
        It is not JSON; so too.
    """
    replace_text(path, json.dumps(value, allow_nan=False), durable=durable)


def replace_text(path: Path, text: str, *, durable: bool = False) -> None:
    """As :func:`write_json`, any text. Raises OSError."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with partial.open("w") as file:
            file.write(text)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        partial.replace(path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise
    if durable:
        sync_folder(path.parent)


def overwrite_json(path: Path, value: Mapping[str, object]) -> None:
    """As :func:`write_json`, and on a full disk too, if the file is there and as large.

    Then it is overwritten where it is, byte by byte; a reader that comes in between finds none, and
    a newer file a moment later.

    Raises
    ------
    OSError
        Nor that can be done: then the file is what it was.
    """
    try:
        write_json(path, value)
    except OSError:
        text = json.dumps(value, allow_nan=False).encode()
        with path.open("r+b", buffering=0) as file:
            os.pwrite(file.fileno(), text.ljust(os.fstat(file.fileno()).st_size), 0)
            os.utime(file.fileno())


def read_json(path: Path) -> dict[str, object] | None:
    """The object in a file; None where there is none, or anything else."""
    try:
        with path.open("rb") as file:
            value = json.loads(file.read(_MOST_BYTES + 1), parse_constant=_refuse)
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def sync_folder(folder: Path) -> None:
    """Make durable which files a folder has."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")
