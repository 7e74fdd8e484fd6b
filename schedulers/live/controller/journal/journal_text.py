"""Records and keys as text that every database takes, and that comes back as it was."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from presage.errors import one_line

MOST_KEY = 2_000  # characters, each of a name up to 12: PostgreSQL's index takes 2,700 bytes


def as_json(record: Mapping[str, Any], what: str) -> str:
    """Of one line.

    Raises
    ------
    ValueError
        It does not come back as it was, so that a fold over it would differ; says where.
    """
    plain = dict(record)
    try:
        text = json.dumps(plain, allow_nan=False, sort_keys=True, separators=(",", ":"))
        if json.loads(text) == plain:
            return text
    except (TypeError, ValueError, RecursionError):
        pass
    try:
        unfit = _unfit(plain, what)
    except RecursionError:
        unfit = f"{what} is nested too deep"
    raise ValueError(
        f"{one_line(unfit or what)}: not JSON, or not the same when it is read again; write texts, "
        "finite numbers, booleans, None, lists, and dicts with texts as keys"
    )


def _unfit(value: object, where: str) -> str | None:
    """What JSON does not bring back, and where it is."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if not isinstance(key, str):
                return f"{where} has the key {key!r}"
            if found := _unfit(inner, f"{where}[{key!r}]"):
                return found
        return None
    if isinstance(value, list):
        each = (_unfit(inner, f"{where}[{number}]") for number, inner in enumerate(value))
        return next(filter(None, each), None)
    if value is None or isinstance(value, str | int):
        return None
    return None if isinstance(value, float) and math.isfinite(value) else f"{where} is {value!r}"


def job_id_of(record: Mapping[str, Any]) -> str | None:
    """The key of a record's job; None if it is of none.

    Raises
    ------
    ValueError
        The job's id is no text, or too long.
    """
    job_id = record.get("job_id")
    if job_id is None or isinstance(job_id, str):
        return None if job_id is None else key_of(job_id)
    raise ValueError(f"job_id={one_line(repr(job_id))}, must be a text")


def key_of(text: str) -> str:
    """A text as a key.

    Raises
    ------
    ValueError
        It is too long.
    """
    key = escaped(text)
    if len(key) > MOST_KEY:
        raise ValueError(f"{one_line(text)!r} has {len(key)} characters, a key has {MOST_KEY}")
    return key


def escaped(text: str) -> str:
    r"""As between JSON's quotes: of any text ASCII without \0, which every database takes."""
    return json.dumps(text)[1:-1]
