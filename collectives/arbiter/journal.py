"""Journal of an arbiter: one row that is on disk before the messages of a step are sent.

The state is small and slow, so each write replaces all of it. Only one arbiter can have a journal
open; a killed one leaves nothing that keeps the next one from it.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from pathlib import Path

from presage.errors import JournalError

VERSION = 1
_TABLE = "CREATE TABLE IF NOT EXISTS state (id INTEGER PRIMARY KEY CHECK (id = 1), version, text)"
_WRITE = "INSERT OR REPLACE INTO state VALUES (1, ?, ?)"


class Journal:
    """State of the arbiter of one domain in a file of SQLite.

    Parameters
    ----------
    path : Path
        File, which is created with its folder if it does not exist.

    Raises
    ------
    JournalError
        Another arbiter has it open, or it cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._lock)
            raise JournalError(
                f"{path}: another arbiter of this domain has the journal; stop it, or give this "
                "one a journal and switches of its own"
            ) from error
        except OSError as error:
            raise JournalError(f"{path}: cannot be locked ({error.strerror})") from error
        try:
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            self._database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            self._database.execute("PRAGMA journal_mode = WAL")
            self._database.execute("PRAGMA synchronous = FULL")
            self._database.execute(_TABLE)
        except (sqlite3.Error, OSError) as error:
            os.close(self._lock)
            raise JournalError(f"{path}: cannot be opened ({error}); is it a journal?") from error

    def read(self) -> str:
        """Return the text that was written last; "" for a new journal.

        Raises
        ------
        JournalError
            It cannot be read, or is of another version.
        """
        try:
            row = self._database.execute("SELECT version, text FROM state").fetchone()
        except sqlite3.Error as error:
            raise JournalError(f"{self._path}: cannot be read ({error})") from error
        if row is None:
            return ""
        version, text = row
        if version != VERSION or not isinstance(text, str):
            raise JournalError(
                f"{self._path}: version {version}, and this arbiter reads {VERSION}; move it away "
                "to begin with a new one"
            )
        return text

    def write(self, text: str) -> None:
        """Replace the text; it is on disk when this returns.

        Raises
        ------
        JournalError
            It cannot be written; the previous text stays.
        """
        try:
            self._database.execute(_WRITE, (VERSION, text))
        except sqlite3.Error as error:
            raise JournalError(f"{self._path}: cannot be written ({error})") from error

    def close(self) -> None:
        """Close the file and free the lock."""
        self._database.close()
        os.close(self._lock)
