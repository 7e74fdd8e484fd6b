"""Features of submitted jobs on disk, by digest, until the outcomes of the jobs are reported."""

from __future__ import annotations

import hashlib
import os
import time
from contextlib import suppress
from pathlib import Path

from presage.schedulers.slurm.feature_text import MAX_MESSAGE_BYTES
from presage.system.files.atomic_file import replace_bytes
from presage.system.files.regular_file import read_small

MAX_STORED = 20_000
MAX_AGE_S = 60 * 24 * 3600.0  # since the last submission with these features


class FeatureStore:
    """Folder with one file per set of features, named by its SHA-256.

    Parameters
    ----------
    state : Path
        State folder of bridge and watcher.
    """

    def __init__(self, state: Path) -> None:
        self._folder = state / "features"

    def put(self, message: bytes) -> str:
        """Store a serialized ``presage.v1.Job``; return its digest.

        Raises
        ------
        OSError
            It cannot be written.
        """
        digest = hashlib.sha256(message).hexdigest()
        path = self._folder / digest
        try:
            os.utime(path)
        except FileNotFoundError:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_bytes(path, message)
        return digest

    def get(self, digest: str) -> bytes | None:
        """Return the message with a digest; None if it is not stored or was changed."""
        try:
            message = read_small(self._folder / digest, MAX_MESSAGE_BYTES)
        except OSError:
            return None
        return message if hashlib.sha256(message).hexdigest() == digest else None

    def prune(self) -> int:
        """Remove old features, and the oldest beyond ``MAX_STORED``; return how many."""
        by_age = sorted((path.lstat().st_mtime, path) for path in self._folder.glob("[!.]*"))
        oldest_s = time.time() - MAX_AGE_S
        removed = 0
        for position, (modified_s, path) in enumerate(by_age):
            if modified_s < oldest_s or position < len(by_age) - MAX_STORED:
                with suppress(OSError):
                    path.unlink()
                    removed += 1
        return removed
