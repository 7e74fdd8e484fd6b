"""JSON objects as files that are replaced as a whole, in folders that a job can write to."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from presage.system.atomic_file import replace_text
from presage.system.regular_file import open_regular, read_small

MOST_BYTES = 64 * 1024  # of a file that says how things stand; a spec has more


def write_json(path: Path, value: Mapping[str, object], *, durable: bool = False) -> None:
    """Replace a file by a JSON object, as :func:`presage.system.atomic_file.replace_bytes` does.

    Raises
    ------
    OSError
        The file cannot be written, for example because the disk is full. It keeps its content.
    TypeError, ValueError
        The object is not JSON. The file keeps its content.
    """
    replace_text(path, json.dumps(value, allow_nan=False), durable=durable)


def overwrite_json(path: Path, value: Mapping[str, object]) -> None:
    """As :func:`write_json`, and on a full disk too, if the file is there and as large.

    Then it is overwritten where it is, byte by byte; a reader that comes in between finds none, and
    a newer file a moment later.

    Raises
    ------
    OSError
        Nor that can be done: then the file is what it was.
    """
    try:
        write_json(path, value)
    except OSError:
        text = json.dumps(value, allow_nan=False).encode()
        with os.fdopen(open_regular(path, os.O_RDWR), "r+b", buffering=0) as file:
            os.pwrite(file.fileno(), text.ljust(os.fstat(file.fileno()).st_size), 0)
            os.utime(file.fileno())


def read_json(path: Path, most_bytes: int = MOST_BYTES) -> dict[str, object] | None:
    """The object in a file; None where there is none, or anything else, or it is larger."""
    try:
        value = json.loads(read_small(path, most_bytes), parse_constant=_refuse)
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")
