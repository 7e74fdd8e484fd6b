"""Checkpoint of an elastic job on disk, for the case that all its workers end."""

from __future__ import annotations

import os
import time
from pathlib import Path

from presage.errors import ElasticError
from presage.system.files.atomic_file import replace_bytes
from presage.training.worker.training_state import TrainingState

FOLDER_VARIABLE = "PRESAGE_CHECKPOINT"
_FILE = "elastic.ckpt"


class Checkpoint:
    """Checkpoint of a job on disk, written every ``interval_s`` by the first worker.

    Parameters
    ----------
    path : Path, optional
        File; by default ``elastic.ckpt`` in the folder ``PRESAGE_CHECKPOINT``, if that is set.
    """

    def __init__(self, path: Path | None, interval_s: float) -> None:
        folder = os.environ.get(FOLDER_VARIABLE)
        self._path = Path(folder, _FILE) if path is None and folder else path
        self._interval_s = interval_s
        self._written_s = time.monotonic()

    @property
    def is_due(self) -> bool:
        """Whether a checkpoint is configured, and the last one is ``interval_s`` old."""
        return self._path is not None and time.monotonic() - self._written_s >= self._interval_s

    def write(self, state: TrainingState) -> str:
        """Write the state; return why that is not possible, or "" if it is on disk."""
        if self._path is None:
            return "no checkpoint is configured"
        self._written_s = time.monotonic()
        try:
            replace_bytes(self._path, state.capture(), durable=True)
        except OSError as error:
            return f"{self._path}: {error.strerror or error}"
        return ""

    def restore(self, state: TrainingState) -> bool:
        """Take over the state on disk; return whether there is one.

        Raises
        ------
        ElasticError
            The file cannot be read, is corrupt, or is of a job that trains something else.
        """
        if self._path is None or not self._path.exists():
            return False
        try:
            state.restore(self._path.read_bytes())
        except OSError as error:
            raise ElasticError(f"checkpoint {self._path}: {error.strerror or error}") from None
        except ElasticError as error:
            raise ElasticError(
                f"checkpoint {self._path}: {error}; remove the file to start from the beginning"
            ) from None
        return True
