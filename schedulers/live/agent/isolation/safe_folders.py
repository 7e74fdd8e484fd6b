"""Folders that jobs write to: made where no link leads elsewhere, removed without following any."""

from __future__ import annotations

import errno
import os
import stat
import time
from contextlib import suppress
from pathlib import Path

from presage.schedulers.live.agent.isolation.account import Account

_TOGETHER = 10_000  # names that are held in memory at once
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def make_own(path: Path, account: Account | None) -> None:
    """Make a folder that an account alone may enter, unless it has it already.

    Parameters
    ----------
    account : Account or None
        None for the account of this process; then a folder of any account's will do.

    Raises
    ------
    OSError
        It cannot be made; ``ENOTDIR`` where something else is there, as a symbolic link; ``EPERM``
        where it is another account's.
    """
    made = False
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
        made = True
    opened = os.open(path, _FOLDER)
    try:
        if account is None:
            return
        owner = os.fstat(opened).st_uid
        if owner == account.uid:
            return
        if not made or owner != os.geteuid():
            raise OSError(errno.EPERM, f"it is of user {owner}, not of {account.name!r}", str(path))
        os.fchown(opened, account.uid, account.gid)
    finally:
        os.close(opened)


def remove_tree(path: Path, within_s: float) -> bool:
    """Remove a folder, whatever a job has put into it; whether it is gone within a time.

    However deep it is this takes two descriptors and no recursion: what is two levels down is moved
    up first. Links are removed and not followed.
    """
    until_s = time.monotonic() + within_s
    try:
        top = os.open(path, _FOLDER)
    except FileNotFoundError:
        return True
    try:
        if not _emptied(top, until_s):
            return False
    finally:
        os.close(top)
    path.rmdir()
    return True


def _emptied(top: int, until_s: float) -> bool:
    """Whether an opened folder has nothing more. Raises OSError."""
    while True:
        with os.scandir(top) as entries:
            names = [entry.name for entry, _ in zip(entries, range(_TOGETHER), strict=False)]
        if not names:
            return True
        for name in names:
            if time.monotonic() > until_s:
                return False
            _remove(top, name, until_s)


def _remove(top: int, name: str, until_s: float) -> None:
    """A file, or as much of a folder as there is time for; its folders go to the top."""
    if not stat.S_ISDIR(os.lstat(name, dir_fd=top).st_mode):
        os.unlink(name, dir_fd=top)
        return
    folder = _opened(top, name)
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
    with suppress(OSError):  # a process still writes there: the next time
        os.rmdir(name, dir_fd=top)


def _move_up(folder: int, name: str, top: int) -> None:
    os.close(_opened(folder, name))  # its owner has to be able to write to what is moved
    os.rename(name, os.urandom(16).hex(), src_dir_fd=folder, dst_dir_fd=top)


def _opened(above: int, name: str) -> int:
    """Open a folder that its job may have closed to its own account."""
    try:
        folder = os.open(name, _FOLDER, dir_fd=above)
    except PermissionError:
        os.chmod(name, 0o700, dir_fd=above)
        folder = os.open(name, _FOLDER, dir_fd=above)
    found = os.fstat(folder)
    if found.st_uid == os.geteuid() and found.st_mode & 0o700 != 0o700:
        os.fchmod(folder, 0o700)
    return folder
