"""Cache of the features of traced models: tracing imports torch, which takes seconds.

An entry counts while every file and environment variable that the tracing read is unchanged.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from presage.errors import InvalidJobError
from presage.features.job.job_description import JobFeatures
from presage.serving.client import job_features
from presage.system.files.atomic_file import write_atomically
from presage.system.processes.recorded_reads import from_json, recorded_reads, to_json

MOST_ENTRIES = 256  # the oldest are deleted
CACHE = "PRESAGE_FEATURE_CACHE"  # environment variable; "off" switches the cache off


def cached_features(
    settings: Mapping[str, Any], iterations: int, trace: Callable[[], JobFeatures]
) -> JobFeatures:
    """Return the features that ``trace()`` returns, from the cache if nothing has changed.

    Parameters
    ----------
    settings : mapping
        What, besides the files and variables that are read, determines the features. JSON values.
    iterations : int
        Of the job; they are no part of what is cached.
    trace : callable
        Its exceptions are not caught, and nothing is cached then.
    """
    if os.environ.get(CACHE) == "off":
        return trace()
    where = {"folder": str(Path.cwd()), "python": sys.version, "path": sys.path[1:]}
    key = sha256(json.dumps([settings, where], sort_keys=True).encode()).hexdigest()
    entry = default_folder() / f"{key[:32]}.json"
    known = _read(entry)
    if known is None:
        with recorded_reads() as reads:
            known = trace()
        with suppress(OSError):  # a cache that cannot be written is no error of the command
            _write(entry, {"reads": to_json(reads), "job": json.loads(job_features.to_json(known))})
    return replace(known, job=replace(known.job, iterations=iterations))


def default_folder() -> Path:
    """Return a folder in the user's cache, which ``XDG_CACHE_HOME`` moves."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "presage/features"


def _read(entry: Path) -> JobFeatures | None:
    """Return the features of an entry; None if there is none, or if what was read has changed."""
    try:
        content = json.loads(entry.read_text())
        if not from_json(content["reads"]).is_current():
            return None
        return job_features.from_json(json.dumps(content["job"]), source=str(entry))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, InvalidJobError):
        return None  # missing or damaged: it is written again


def _write(entry: Path, content: Mapping[str, Any]) -> None:
    write_atomically(entry, lambda path: path.write_text(json.dumps(content)))
    entries = sorted(entry.parent.glob("*.json"), key=lambda path: path.stat().st_mtime)
    for old in entries[:-MOST_ENTRIES]:
        old.unlink(missing_ok=True)
