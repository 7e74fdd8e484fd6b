"""What tasks wrote that are over: kept for whoever asks later, as many as there is room for."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from presage.schedulers.live.agent.tasks.log_file import (
    first_file_of,
    first_of,
    is_first_file,
    keep_small,
    old_of,
    write_first,
)
from presage.schedulers.live.agent.tasks.task import LOG_BYTES
from presage.schedulers.live.agent.tasks.task_folder import TaskFolder
from presage.system.regular_file import open_regular

LOGS = "logs"
MOST_LOGS = 1_000
_PIECE_BYTES = 1024 * 1024  # copied at once
MOST_BYTES = 1024 * 1024 * 1024  # of all of them


def keep_log(folder: TaskFolder) -> None:
    """Keep the log of a task whose folder is about to be removed, and let go of the oldest.

    A disk that is full keeps none.
    """
    kept = folder.state / LOGS
    with suppress(OSError):
        kept.mkdir(mode=0o700, exist_ok=True)
        log, old, target = folder.log, old_of(folder.log), kept / folder.name
        keep_small(log, LOG_BYTES)  # a job can make it a sparse file of terabytes
        old_bytes = _size(old)
        first = first_of(log) - (old_bytes or 0)
        if _size(log) is None:
            return
        if first or first_file_of(target).exists():
            write_first(target, first)
        # What the task wrote last is in both. Another account's log is copied: a process of that
        # account that has it open could write to it, and enlarge it, for as long as it is kept.
        if old_bytes is not None or _is_of_another(log):
            _append(log, old)
            log = old
        log.replace(target)
        _let_go(kept)


def log_of(state: Path, name: str) -> Path:
    """Where the log of a task that is over would be."""
    return state / LOGS / name


def _size(log: Path) -> int | None:
    """Bytes of a regular file; None where there is none. Raises OSError for anything else."""
    try:
        opened = open_regular(log)
    except FileNotFoundError:
        return None
    try:
        return os.fstat(opened).st_size
    finally:
        os.close(opened)


def _is_of_another(log: Path) -> bool:
    return log.lstat().st_uid != os.geteuid()


def _append(log: Path, old: Path) -> None:
    """Copy a log, but no more than one may have: it may grow as fast as it is read."""
    with (
        os.fdopen(open_regular(log), "rb") as source,
        os.fdopen(open_regular(old, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "ab") as both,
    ):
        left = LOG_BYTES
        while piece := source.read(min(left, _PIECE_BYTES)):
            both.write(piece)
            left -= len(piece)


def _let_go(kept: Path) -> None:
    logs = [entry for entry in os.scandir(kept) if not is_first_file(entry.name)]
    newest = sorted(((entry.stat(), entry.path) for entry in logs), key=_written)
    total = 0
    for number, (stat, path) in enumerate(reversed(newest)):
        total += stat.st_size
        if number >= MOST_LOGS or total > MOST_BYTES:
            Path(path).unlink(missing_ok=True)
            first_file_of(Path(path)).unlink(missing_ok=True)


def _written(one: tuple[os.stat_result, str]) -> float:
    return one[0].st_mtime
