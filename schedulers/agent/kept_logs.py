"""What tasks wrote that are over: kept for whoever asks later, as many as there is room for."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

from presage.schedulers.agent.log_file import OLD
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
        kept.mkdir(exist_ok=True)
        log, old = folder.log, folder.log.with_name(OLD)
        if old.exists():  # what the task wrote last is in both
            with log.open("rb") as source, old.open("ab") as target:
                shutil.copyfileobj(source, target)
            log = old
        log.replace(kept / folder.name)
        _let_go(kept)


def log_of(state: Path, name: str) -> Path:
    """Where the log of a task that is over would be."""
    return state / LOGS / name


def _let_go(kept: Path) -> None:
    newest = sorted(((entry.stat(), entry.path) for entry in os.scandir(kept)), key=_written)
    total = 0
    for number, (stat, path) in enumerate(reversed(newest)):
        total += stat.st_size
        if number >= MOST_LOGS or total > MOST_BYTES:
            Path(path).unlink(missing_ok=True)


def _written(one: tuple[os.stat_result, str]) -> float:
    return one[0].st_mtime
