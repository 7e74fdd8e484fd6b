"""Lossless conversion of records and keys to text that every database accepts."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from presage.errors import one_line

MAX_KEY = 2_000  # characters, up to 12 per character of a name; PostgreSQL indexes 2,700 bytes


def as_json(record: Mapping[str, Any], what: str) -> str:
    """Return a record as one line of JSON.

    Raises
    ------
    ValueError
        Reading the JSON would not return an equal record; names the value.
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
        f"{one_line(unfit or what)}: not JSON, or not equal after reading it back; use strings, "
        "finite numbers, booleans, None, lists, and dicts with strings as keys"
    )


def _unfit(value: object, where: str) -> str | None:
    """Return the place of a value that JSON does not preserve; None if there is none."""
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


def job_key(record: Mapping[str, Any]) -> str | None:
    """Return the database key of a record's job; None if it concerns no job.

    Raises
    ------
    ValueError
        The job's id is not a string, or too long.
    """
    job_id = record.get("job_id")
    if job_id is None or isinstance(job_id, str):
        return None if job_id is None else text_key(job_id)
    raise ValueError(f"job_id={one_line(repr(job_id))}, must be a string")


def text_key(text: str) -> str:
    """Return a text as a database key.

    Raises
    ------
    ValueError
        The text is too long.
    """
    key = escaped(text)
    if len(key) > MAX_KEY:
        raise ValueError(f"{one_line(text)!r} has {len(key)} characters, a key can have {MAX_KEY}")
    return key


def escaped(text: str) -> str:
    r"""Return a text with JSON's escapes: ASCII without \0, which every database accepts."""
    return json.dumps(text)[1:-1]
