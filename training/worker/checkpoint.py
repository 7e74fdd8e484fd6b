"""Checkpoint of an elastic job on disk, for the case that all its workers die."""

from __future__ import annotations

import time
from pathlib import Path

from presage.system.files.atomic_file import replace_bytes
from presage.training.worker.training_state import TrainingState


class Checkpoint:
    """Checkpoint of a job on disk, written every ``interval_s`` by the first worker."""

    def __init__(self, path: Path | None, interval_s: float) -> None:
        self._path, self._interval_s = path, interval_s
        self._saved_s = time.monotonic()

    def save(self, state: TrainingState) -> None:
        """Write the state if it is time to."""
        if self._path is not None and time.monotonic() - self._saved_s >= self._interval_s:
            self._saved_s = time.monotonic()
            replace_bytes(self._path, state.capture(), durable=True)

    def restore(self, state: TrainingState) -> bool:
        """Take over the state on disk; return whether there is one."""
        if self._path is None or not self._path.exists():
            return False
        state.restore(self._path.read_bytes())
        return True
