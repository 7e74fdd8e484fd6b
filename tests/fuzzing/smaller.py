"""Messages that say less: what is left of an input that found a fault is what it is about."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from google.protobuf.message import DecodeError

from tests.fuzzing.messages import is_map, submessages


def smaller_messages(kind: Any, content: bytes) -> Iterator[bytes]:
    """Contents with one field, or some elements of a list, taken away; largest parts first.

    None of what cannot be parsed.
    """
    try:
        whole = kind.FromString(content)
    except DecodeError:
        return
    for position, part in enumerate(list(submessages(whole))):
        for field, value in part.ListFields():
            if field.is_repeated and not is_map(field) and len(value) > 1:
                for first, last in _spans(len(value)):
                    yield _without(kind, content, position, field.name, first, last)
            yield _without(kind, content, position, field.name, 0, None)


def _spans(length: int) -> Iterator[tuple[int, int]]:
    """Halves, quarters... of a list, down to single elements."""
    size = length // 2
    while size:
        for first in range(0, length, size):
            yield first, first + size
        size //= 2


def _without(
    kind: Any, content: bytes, position: int, field: str, first: int, last: int | None
) -> bytes:
    whole = kind.FromString(content)
    part = next(p for i, p in enumerate(submessages(whole)) if i == position)
    if last is None:
        part.ClearField(field)
    else:
        del getattr(part, field)[first:last]
    smaller: bytes = whole.SerializeToString()
    return smaller
