"""What tasks wrote that are over: kept for whoever asks later, as many as there is room for."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

from presage.schedulers.agent.log_file import (
    first_file_of,
    first_of,
    is_first_file,
    old_of,
    write_first,
)
from presage.schedulers.agent.task_folder import TaskFolder

LOGS = "logs"
MOST_LOGS = 1_000
MOST_BYTES = 1024 * 1024 * 1024  # of all of them


def keep_log(folder: TaskFolder) -> None:
    """Keep the log of a task whose folder is about to be removed, and let go of the oldest.

    A disk that is full keeps none.
    """
    kept = folder.state / LOGS
    with suppress(OSError):
        kept.mkdir(mode=0o700, exist_ok=True)
        log, old, target = folder.log, old_of(folder.log), kept / folder.name
        first = first_of(log) - (old.stat().st_size if old.exists() else 0)
        if first or first_file_of(target).exists():
            write_first(target, first)
        if old.exists():  # what the task wrote last is in both
            with log.open("rb") as source, old.open("ab") as both:
                shutil.copyfileobj(source, both)
            log = old
        log.replace(target)
        _let_go(kept)


def log_of(state: Path, name: str) -> Path:
    """Where the log of a task that is over would be."""
    return state / LOGS / name


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
