"""Creation and removal of folders that jobs can write to, without following symbolic links."""

from __future__ import annotations

import errno
import os
import stat
import time
from contextlib import suppress
from pathlib import Path

from presage.schedulers.live.agent.isolation.account import Account

_BATCH = 10_000  # names held in memory at once
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def make_private_folder(path: Path, account: Account | None) -> None:
    """Create a folder that only an account may enter, unless it exists already.

    Parameters
    ----------
    account : Account or None
        None for the account of this process; then a folder of any account is accepted.

    Raises
    ------
    OSError
        It cannot be created; ``ENOTDIR`` if something else exists there, such as a symbolic link;
        ``EPERM`` if it belongs to another account.
    """
    is_new = False
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
        is_new = True
    opened = os.open(path, _FOLDER)
    try:
        if account is None:
            return
        owner = os.fstat(opened).st_uid
        if owner == account.uid:
            return
        if not is_new or owner != os.geteuid():
            raise OSError(errno.EPERM, f"it is of user {owner}, not of {account.name!r}", str(path))
        os.fchown(opened, account.uid, account.gid)
    finally:
        os.close(opened)


def remove_tree(path: Path, within_s: float) -> bool:
    """Remove a folder that a job has written to; return whether it is gone within a time.

    At any depth this takes two descriptors and no recursion: folders two levels down are moved up
    first. Links are removed and not followed.
    """
    until_s = time.monotonic() + within_s
    try:
        top = os.open(path, _FOLDER)
    except FileNotFoundError:
        return True
    try:
        if not _empty(top, until_s):
            return False
    finally:
        os.close(top)
    path.rmdir()
    return True


def _empty(top: int, until_s: float) -> bool:
    """Remove the content of an opened folder; return whether it is empty. Raises OSError."""
    while True:
        with os.scandir(top) as entries:
            names = [entry.name for entry, _ in zip(entries, range(_BATCH), strict=False)]
        if not names:
            return True
        for name in names:
            if time.monotonic() > until_s:
                return False
            _remove(top, name, until_s)


def _remove(top: int, name: str, until_s: float) -> None:
    """Remove a file, or what time permits of a folder; move its subfolders to the top."""
    if not stat.S_ISDIR(os.lstat(name, dir_fd=top).st_mode):
        os.unlink(name, dir_fd=top)
        return
    folder = _open_folder(top, name)
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if time.monotonic() > until_s:
                    return
                if entry.is_dir(follow_symlinks=False):
                    _move_up(folder, entry.name, top)
                else:
                    os.unlink(entry.name, dir_fd=folder)
    finally:
        os.close(folder)
    with suppress(OSError):  # a process still writes there: retried in the next call
        os.rmdir(name, dir_fd=top)


def _move_up(folder: int, name: str, top: int) -> None:
    os.close(_open_folder(folder, name))  # its owner must have write permission to move it
    os.rename(name, os.urandom(16).hex(), src_dir_fd=folder, dst_dir_fd=top)


def _open_folder(above: int, name: str) -> int:
    """Open a folder, also if its job has removed its own account's permissions."""
    try:
        folder = os.open(name, _FOLDER, dir_fd=above)
    except PermissionError:
        os.chmod(name, 0o700, dir_fd=above)
        folder = os.open(name, _FOLDER, dir_fd=above)
    found = os.fstat(folder)
    if found.st_uid == os.geteuid() and found.st_mode & 0o700 != 0o700:
        os.fchmod(folder, 0o700)
    return folder
