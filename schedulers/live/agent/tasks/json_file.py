"""Atomic reading and writing of JSON files."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from presage.system.regular_file import open_regular, read_small

MAX_BYTES = 64 * 1024  # of a state file; a spec may be larger


def write_json(path: Path, value: Mapping[str, object], *, durable: bool = False) -> None:
    """Replace a file atomically: a reader sees the previous or the new object, complete.

    Parameters
    ----------
    durable : bool
        Whether to flush to the disk, so that the file survives a loss of power after the return.

    Raises
    ------
    OSError
        It cannot be written, as on a full disk; the file is unchanged.
    TypeError, ValueError
        The value is not JSON; the file is unchanged.
    """
    replace_text(path, json.dumps(value, allow_nan=False), durable=durable)


def replace_text(path: Path, text: str, *, durable: bool = False) -> None:
    """Replace a file by a text, as :func:`write_json` does. Raises OSError."""
    replace_bytes(path, text.encode(), durable=durable)


def replace_bytes(path: Path, content: bytes, *, durable: bool = False) -> None:
    """Replace a file by bytes that only this user can read; see :func:`write_json`."""
    # A job cannot guess this name, and so cannot block it.
    partial = path.with_name(f".{os.urandom(8).hex()}")
    opened = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(opened, "wb") as file:
            file.write(content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        _rename(partial, path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise
    if durable:
        sync_folder(path.parent)


def overwrite_json(path: Path, value: Mapping[str, object]) -> None:
    """Replace a file as :func:`write_json` does; on a full disk, overwrite it in place.

    An existing file is overwritten if it is large enough. A concurrent reader may find no valid
    object, and finds the new one a moment later.

    Raises
    ------
    OSError
        Neither is possible; the file is unchanged.
    """
    try:
        write_json(path, value)
    except OSError:
        text = json.dumps(value, allow_nan=False).encode()
        with os.fdopen(open_regular(path, os.O_RDWR), "r+b", buffering=0) as file:
            os.pwrite(file.fileno(), text.ljust(os.fstat(file.fileno()).st_size), 0)
            os.utime(file.fileno())


def read_json(path: Path, max_bytes: int = MAX_BYTES) -> dict[str, object] | None:
    """Return the object in a file; None if it is missing, not an object, or too large."""
    try:
        value = json.loads(read_small(path, max_bytes), parse_constant=_reject_constant)
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def sync_folder(folder: Path) -> None:
    """Flush the directory entries of a folder to the disk."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _rename(partial: Path, path: Path) -> None:
    """Rename a file; move a folder that a job has put in its place out of the way."""
    try:
        partial.replace(path)
    except OSError as error:
        if error.errno not in (errno.EISDIR, errno.ENOTEMPTY, errno.EEXIST):
            raise
        path.rename(path.with_name(f".{os.urandom(8).hex()}"))
        partial.replace(path)


def _reject_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")
