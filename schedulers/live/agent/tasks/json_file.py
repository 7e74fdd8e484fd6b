"""JSON objects as files: whole or not there, whatever dies while they are written."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from presage.system.regular_file import open_regular, read_small

MOST_BYTES = 64 * 1024  # of a file that says how things stand; a spec has more


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
    replace_bytes(path, text.encode(), durable=durable)


def replace_bytes(path: Path, content: bytes, *, durable: bool = False) -> None:
    """As :func:`write_json`, any content; readable by this process' user alone. Raises OSError."""
    # A name that no job can guess, and so put something in the way of.
    partial = path.with_name(f".{os.urandom(8).hex()}")
    opened = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(opened, "wb") as file:
            file.write(content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        _put(partial, path)
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
        with os.fdopen(open_regular(path, os.O_RDWR), "r+b", buffering=0) as file:
            os.pwrite(file.fileno(), text.ljust(os.fstat(file.fileno()).st_size), 0)
            os.utime(file.fileno())


def read_json(path: Path, most_bytes: int = MOST_BYTES) -> dict[str, object] | None:
    """The object in a file; None where there is none, or anything else, or it is larger."""
    try:
        value = json.loads(read_small(path, most_bytes), parse_constant=_refuse)
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


def _put(partial: Path, path: Path) -> None:
    """Rename a file; a folder that a job has put in its place is moved out of the way."""
    try:
        partial.replace(path)
    except OSError as error:
        if error.errno not in (errno.EISDIR, errno.ENOTEMPTY, errno.EEXIST):
            raise
        path.rename(path.with_name(f".{os.urandom(8).hex()}"))
        partial.replace(path)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")
