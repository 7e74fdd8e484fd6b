"""A job's log, which does not fill the disk."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

OLD = "log.old"  # beside a log


def keep_small(log: Path, most_bytes: int) -> None:
    """Where a log has grown above a size, keep its end as ``log.old`` and begin it anew.

    The job goes on writing to the same file, always to its end. What it writes in between is lost.
    """
    with suppress(OSError):  # on a full disk the old lines go, so that new ones find room
        size = log.stat().st_size
        if size <= most_bytes:
            return
        try:
            with log.open("rb") as source, log.with_name(OLD).open("wb") as target:
                at = size - most_bytes
                while copied := os.sendfile(target.fileno(), source.fileno(), at, size - at):
                    at += copied
        finally:
            os.truncate(log, 0)
