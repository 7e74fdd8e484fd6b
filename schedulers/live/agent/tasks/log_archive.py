"""Archive of the logs of ended tasks, limited in number and size."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from presage.schedulers.live.agent.tasks.log_file import (
    is_start_offset_file,
    limit_log_size,
    previous_log,
    start_offset,
    start_offset_file,
    write_start_offset,
)
from presage.schedulers.live.agent.tasks.task import LOG_BYTES
from presage.schedulers.live.agent.tasks.task_folder import TaskFolder
from presage.system.files.regular_file import open_regular

LOGS = "logs"
MAX_LOGS = 1_000
_CHUNK_BYTES = 1024 * 1024  # copied at once
MAX_BYTES = 1024 * 1024 * 1024  # of all archived logs


def archive_log(folder: TaskFolder) -> None:
    """Archive the log of a task before its folder is removed; drop the oldest archived logs.

    On a full disk nothing is archived.
    """
    archive = folder.state / LOGS
    with suppress(OSError):
        archive.mkdir(mode=0o700, exist_ok=True)
        log, old, target = folder.log, previous_log(folder.log), archive / folder.name
        limit_log_size(log, LOG_BYTES)  # a job can make it a sparse file of terabytes
        old_bytes = _size(old)
        first = start_offset(log) - (old_bytes or 0)
        if _size(log) is None:
            return
        if first or start_offset_file(target).exists():
            write_start_offset(target, first)
        # The last output is appended to the previous log. Another account's log is copied: a
        # process of that account that has it open could write to the archive, and enlarge it.
        if old_bytes is not None or _has_other_owner(log):
            _append(log, old)
            log = old
        log.replace(target)
        _remove_oldest(archive)


def archived_log(state: Path, name: str) -> Path:
    """Return the path of the archived log of an ended task."""
    return state / LOGS / name


def _size(log: Path) -> int | None:
    """Return the size of a regular file; None if there is none. Raises OSError otherwise."""
    try:
        opened = open_regular(log)
    except FileNotFoundError:
        return None
    try:
        return os.fstat(opened).st_size
    finally:
        os.close(opened)


def _has_other_owner(log: Path) -> bool:
    return log.lstat().st_uid != os.geteuid()


def _append(log: Path, old: Path) -> None:
    """Append a log to another, up to ``LOG_BYTES``: it may grow as fast as it is read."""
    with (
        os.fdopen(open_regular(log), "rb") as source,
        os.fdopen(open_regular(old, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "ab") as target,
    ):
        left = LOG_BYTES
        while chunk := source.read(min(left, _CHUNK_BYTES)):
            target.write(chunk)
            left -= len(chunk)


def _remove_oldest(archive: Path) -> None:
    logs = [entry for entry in os.scandir(archive) if not is_start_offset_file(entry.name)]
    newest = sorted(((entry.stat(), entry.path) for entry in logs), key=_modified_s)
    total = 0
    for number, (stat, path) in enumerate(reversed(newest)):
        total += stat.st_size
        if number >= MAX_LOGS or total > MAX_BYTES:
            Path(path).unlink(missing_ok=True)
            start_offset_file(Path(path)).unlink(missing_ok=True)


def _modified_s(entry: tuple[os.stat_result, str]) -> float:
    return entry[0].st_mtime
