"""JSON objects as files that are replaced as a whole, in folders that a job can write to."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from presage.system.files.atomic_file import replace_text
from presage.system.files.regular_file import open_regular, read_small

MAX_BYTES = 64 * 1024  # of a state file; a spec may be larger


def write_json(path: Path, value: Mapping[str, object], *, durable: bool = False) -> None:
    """Replace a file by a JSON object, atomically.

    Raises
    ------
    OSError
        The file cannot be written, for example because the disk is full. It keeps its content.
    TypeError, ValueError
        The object is not JSON. The file keeps its content.
    """
    text = json.dumps(value, allow_nan=False)
    replace_text(path, text, durable=durable, displace_folder=True)


def overwrite_json(path: Path, value: Mapping[str, object]) -> None:
    """Replace a file as :func:`write_json` does; on a full disk, overwrite it in place.

    An existing file is overwritten if it is large enough. A concurrent reader may find no valid
    object, and finds the new one a moment later.

    Raises
    ------
    OSError
        Neither is possible; the file is unchanged.
    """
    try:
        write_json(path, value)
    except OSError:
        text = json.dumps(value, allow_nan=False).encode()
        with os.fdopen(open_regular(path, os.O_RDWR), "r+b", buffering=0) as file:
            os.pwrite(file.fileno(), text.ljust(os.fstat(file.fileno()).st_size), 0)
            os.utime(file.fileno())


def read_json(path: Path, max_bytes: int = MAX_BYTES) -> dict[str, object] | None:
    """Return the object in a file; None if it is missing, not an object, or too large."""
    try:
        value = json.loads(read_small(path, max_bytes), parse_constant=_reject_constant)
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _reject_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")
