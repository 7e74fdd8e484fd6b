"""Implausible JSON: values of other types and sizes, duplicate names, deep nesting."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Sequence
from typing import Any

_RAW = (
    "null", "true", "false", "0", "-1", "1", "2", "0.5", "1e999", "-1e999", "NaN", "1e308",
    "5e-324",
    "9223372036854775808", "1" * 400, "1" * 5000, '""', '"x"', '"0"', '"nan nan"', '"\\ud800"',
    '"\\u0000"', '"../../etc/passwd"', "[]", "{}", "[[]]", '[""]', '{"": 0}', '{"x": null}',
    "[" * 60 + "]" * 60, "[" * 100_000 + "]" * 100_000, "[" + "0," * 99_999 + "0]",
    '"' + "0 " * 50_000 + '"', '{"-1": 1, "99999": 1}',
)  # fmt: skip
_SLOT = "@@slot-{}@@"


def an_edit(whole: Any, rng: random.Random) -> dict[str, Any]:
    """A place, and what is to become of what is there."""
    at: list[Any] = []
    value = whole
    while isinstance(value, dict | list) and value and (not at or rng.random() < 0.85):
        key = rng.choice(list(value)) if isinstance(value, dict) else rng.randrange(len(value))
        at.append(key)
        value = value[key]
    way = rng.random()
    if way < 0.15:
        return {"at": at, "remove": True}
    if way < 0.2 and isinstance(at[-1], str):
        return {"at": at, "again": rng.choice(_RAW)}
    if way < 0.55:
        return {"at": at, "json": json.dumps(_like(value, rng))}
    return {"at": at, "json": rng.choice(_RAW)}


def _like(value: Any, rng: random.Random) -> Any:
    """Something of the same type, and not the same."""
    if isinstance(value, bool) or value is None:
        return not value
    if isinstance(value, int | float):
        return rng.choice((-value, value + 1, value * 1e6, value / 3, int(value), str(value)))
    if isinstance(value, str):
        words = value.split()
        rng.shuffle(words)
        return rng.choice((value + "x", value[:-1], value * 20, " ".join(words), value.upper()))
    if isinstance(value, list):
        return rng.choice((value[1:], value[::-1], value * 2, value[:1] * 3000, [value]))
    some = [key for key in value if rng.random() < 0.7]
    if rng.random() < 0.5:
        return {key: value[key] for key in some}
    return value | {rng.choice(("gpu", "processor", "x", "", "9", "-1")): v
                    for v in list(value.values())[:1]}  # fmt: skip


def edited(whole: Any, edits: Sequence[dict[str, Any]]) -> str:
    """The text of an object, with JSON in it that :func:`json.dumps` would not write."""
    whole = copy.deepcopy(whole)
    put: dict[str, str] = {}
    for number, edit in enumerate(edits):
        *way, last = edit["at"]
        slot = _SLOT.format(number)
        parent: Any = whole
        try:
            for key in way:
                parent = parent[key]
            if "remove" in edit:
                del parent[last]
            elif "again" in edit:
                parent[slot] = slot
                put[f'"{slot}": "{slot}"'] = f"{json.dumps(last)}: {edit['again']}"
            else:
                parent[last] = slot
                put[f'"{slot}"'] = edit["json"]
        except (LookupError, TypeError):  # an edit before this one took its place away
            continue
    text = json.dumps(whole)
    for old, new in put.items():
        text = text.replace(old, new)
    return text
