"""Atomic replacement of folders: a reader finds the old folder or the new one, each whole."""

from __future__ import annotations

import ctypes
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_HERE, _EXCHANGE = -100, 2  # AT_FDCWD, RENAME_EXCHANGE of Linux


@contextmanager
def replaced_folder(folder: Path) -> Iterator[Path]:
    """Yield an empty folder that takes the place of ``folder`` at the end of the block.

    If the block raises, ``folder`` stays as it was. A kill may leave the partial folder, hidden.
    """
    partial = partial_folder(folder)
    try:
        partial.mkdir(parents=True)
        yield partial
        put_in_place(partial, folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def partial_folder(folder: Path) -> Path:
    """Return a hidden, unused name next to ``folder``, for one that is to take its place."""
    return folder.with_name(f".{folder.name}.{os.urandom(4).hex()}.partial")


def put_in_place(new: Path, folder: Path) -> None:
    """Rename ``new`` to ``folder``, on the same file system, and remove the old folder.

    A reader finds the old folder or the new one. On a system that cannot swap two folders it finds
    none for an instant between two renames. If the rename fails or is interrupted, the old folder
    is put back.
    """
    if swapped(new, folder):
        shutil.rmtree(new, ignore_errors=True)
        return
    old = folder.with_name(f".{folder.name}.{os.urandom(4).hex()}.old")
    try:
        if folder.exists():
            folder.rename(old)
        new.rename(folder)
    finally:
        if old.exists():
            if folder.exists():
                shutil.rmtree(old, ignore_errors=True)
            else:
                old.rename(folder)


def swapped(one: Path, other: Path) -> bool:
    """Swap two folders in one step, as Linux can on most file systems; return whether it did."""
    rename = getattr(ctypes.CDLL(None), "renameat2", None) if sys.platform == "linux" else None
    if rename is None:
        return False
    return bool(rename(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE) == 0)
