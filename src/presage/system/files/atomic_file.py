"""Atomic writes: a reader of a file sees its old content or its new content, never a part.

Imports the standard library only, since users' jobs import this module too.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL
for _name in ("O_NOFOLLOW", "O_CLOEXEC"):
    _CREATE |= getattr(os, _name, 0)  # not all systems that a job may run on have them


def write_atomically(path: Path, write: Callable[[Path], Any]) -> None:
    """Let ``write`` fill a partial file, flush it to disk and rename it; make missing folders.

    Raises
    ------
    OSError
        The file cannot be written. It keeps its old content.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with _partial_file(path) as partial:
        write(partial)
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        partial.replace(path)


def replace_text(
    path: Path,
    text: str,
    *,
    durable: bool = False,
    mode: int = 0o600,
    displace_folder: bool = False,
) -> None:
    """Replace a file by ``text``, as :func:`replace_bytes` does."""
    replace_bytes(path, text.encode(), durable=durable, mode=mode, displace_folder=displace_folder)


def replace_bytes(
    path: Path,
    content: bytes,
    *,
    durable: bool = False,
    mode: int = 0o600,
    displace_folder: bool = False,
) -> None:
    """Replace a file by ``content``; safe in a folder that a job can write to.

    Parameters
    ----------
    durable : bool
        Whether the new content survives a power failure after the return. Otherwise the call does
        not wait for the disk, and a power failure may leave an empty file.
    mode : int
        Permissions of the file, before the process's umask; by default of its owner only.
    displace_folder : bool
        Whether a folder in the place of the file is moved to a hidden name next to it. Only for
        files in a folder of a job, which could otherwise prevent each write.

    Raises
    ------
    OSError
        The file cannot be written, for example because the disk is full. It keeps its old content.
        ``IsADirectoryError``: a folder is in its place, and stays there.
    """
    with _partial_file(path) as partial:
        write_new(partial, content, durable=durable, mode=mode)
        _rename_over(partial, path, displace_folder=displace_folder)
    if durable:
        sync_folder(path.parent)


def write_new(path: Path, content: bytes, *, durable: bool = True, mode: int = 0o600) -> None:
    """Create a file with this content; follow no link and replace nothing.

    Parameters
    ----------
    durable : bool
        Whether to flush the content to disk; the folder's entry is flushed by :func:`sync_folder`.
    mode : int
        Permissions of the file, before the process's umask.

    Raises
    ------
    OSError
        The path exists (``FileExistsError``) or cannot be written. A part of a file is removed.
    """
    descriptor = os.open(path, _CREATE, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries to disk: names of files that were created, renamed or removed."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _partial_file(path: Path) -> Iterator[Path]:
    # A name that no job can guess, so that none can put something in its way.
    partial = path.with_name(f".{path.name}.{os.urandom(8).hex()}.partial")
    try:
        yield partial
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def _rename_over(partial: Path, path: Path, *, displace_folder: bool) -> None:
    try:
        partial.replace(path)
    except OSError as error:
        if error.errno not in (errno.EISDIR, errno.ENOTEMPTY, errno.EEXIST):
            raise
        if not displace_folder:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path)) from error
        path.rename(path.with_name(f".{os.urandom(8).hex()}"))
        partial.replace(path)
