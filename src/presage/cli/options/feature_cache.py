"""Cache of the features of traced models: tracing imports torch, which takes seconds.

An entry is used while every file, folder and environment variable that was read is unchanged.
"""

from __future__ import annotations

import json
import os
import sys
import sysconfig
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from presage.errors import InvalidJobError
from presage.features.job.job_description import JobFeatures
from presage.serving.client import job_features
from presage.system.files.atomic_file import replace_text
from presage.system.processes.recorded_reads import from_json, recorded_reads, to_json

MOST_ENTRIES = 256  # the oldest are deleted
MOST_BYTES = 2**20  # of an entry; a larger one is not written
CACHE = "PRESAGE_FEATURE_CACHE"  # environment variable; "off" switches the cache off


def cached_features(
    settings: Mapping[str, Any], iterations: int, trace: Callable[[], JobFeatures]
) -> JobFeatures:
    """Return the features that ``trace()`` returns, from the cache if nothing has changed.

    Parameters
    ----------
    settings : mapping
        Options that determine the features, as JSON values.
    iterations : int
        Iterations of the job. They are not cached.
    trace : callable
        Traces the model. Its exceptions are not caught, and then nothing is cached.
    """
    if os.environ.get(CACHE) == "off":
        return trace()
    try:
        entry = default_folder() / f"{_key(settings)}.json"
    except (OSError, RuntimeError):  # the working or home folder does not exist
        return trace()
    known = _read(entry)
    if known is None:
        with recorded_reads() as reads:
            known = trace()
        if reads.is_complete:
            job = json.loads(job_features.to_json(known))
            with suppress(OSError):  # a cache that cannot be written is no error of the command
                _write(entry, {"reads": to_json(reads), "job": job})
    return replace(known, job=replace(known.job, iterations=iterations))


def _key(settings: Mapping[str, Any]) -> str:
    """Return the name of an entry, from the settings, Python and the versions of its packages."""
    where = {"folder": str(Path.cwd()), "python": sys.version, "path": sys.path[1:]}
    folders = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    packages = sorted(path.name for f in sorted(folders) for path in Path(f).glob("*.dist-info"))
    content = json.dumps([settings, where, packages], sort_keys=True)
    return sha256(content.encode()).hexdigest()[:32]


def default_folder() -> Path:
    """Return a folder in the user's cache, which ``XDG_CACHE_HOME`` moves."""
    moved = Path(os.environ.get("XDG_CACHE_HOME", ""))
    # A relative path is invalid (XDG Base Directory Specification).
    return (moved if moved.is_absolute() else Path.home() / ".cache") / "presage/features"


def _read(entry: Path) -> JobFeatures | None:
    """Return the features of an entry; None if there is none, or if what was read has changed.

    An entry that another user owns is ignored, because the folder may be shared.
    """
    try:
        with entry.open() as file:
            if os.fstat(file.fileno()).st_uid != os.getuid():
                return None
            content = json.load(file)
        if not from_json(content["reads"]).is_current():
            return None
        return job_features.from_json(json.dumps(content["job"]), source=str(entry))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, InvalidJobError):
        return None  # missing or damaged: it is written again


def _write(entry: Path, content: Mapping[str, Any]) -> None:
    text = json.dumps(content)
    if len(text) > MOST_BYTES:
        return
    entry.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    replace_text(entry, text)  # of its owner only: it has digests of environment variables
    entries = sorted(entry.parent.glob("*.json"), key=lambda path: path.stat().st_mtime)
    for old in entries[:-MOST_ENTRIES]:
        old.unlink(missing_ok=True)
