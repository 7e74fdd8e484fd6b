"""Strategies for any message of a protocol, from its descriptor: new fields are fuzzed too.

Values are of every type and size, valid ones among them; texts hold ``SECRET``, which no error may
repeat.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from google.protobuf import message_factory
from google.protobuf.descriptor import FieldDescriptor as Field
from hypothesis import strategies as st

from presage.features.columns.schema import columns
from presage.features.graph.op_kinds import OP_KINDS
from presage.features.job.job_description import MEMORY_FORMATS, PRECISIONS
from tests.fuzzing.messages import is_map, submessages

SECRET = "s3cret"
_RANGES = {
    Field.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    Field.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    Field.CPPTYPE_UINT32: (0, 2**32 - 1),
    Field.CPPTYPE_UINT64: (0, 2**64 - 1),
    Field.CPPTYPE_ENUM: (-(2**31), 2**31 - 1),  # whether or not there is such a name
}
_WORDS = (
    *PRECISIONS, *MEMORY_FORMATS, *OP_KINDS, "forward", "backward", "optimizer", "exclusive", "mps",
    "cpu-2", "v100", "gpu", "memory", "interference", "features", "members", "mask", "FP32",
    "quantiles", "2.13", "crash", "",
)  # fmt: skip
_LONG = (257, 4000)
_texts = (
    st.sampled_from((SECRET, SECRET, *_WORDS))
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
    | st.sampled_from([SECRET * math.ceil(size / len(SECRET)) for size in _LONG])
    | st.sampled_from(["\0", "\n", "../" + SECRET, "é\u202e" + SECRET, "{}%s", "'\"`"])
)
_floats = st.sampled_from((0.0, 1.0, 0.5, 0.8, -1.0, 1e300, 1e38, 5e-324)) | st.floats()
_WIDTH = len(columns("full"))
# Rows of features are bytes too: a few numbers, over and over.
_numbers = st.sampled_from((0.0, 1.0, 1e9, 1e20, 1e30, 3e38, 1e-30)) | st.floats(width=32)
_rows = st.builds(
    lambda numbers, rows: np.resize(np.array(numbers, "<f4"), rows * _WIDTH).tobytes(),
    st.lists(_numbers, min_size=1, max_size=5),
    st.integers(1, 3),
)
_bytes = st.binary(max_size=64) | st.sampled_from((SECRET.encode(), bytes(20_000))) | _rows


def element_values(field: Any) -> st.SearchStrategy[Any]:
    """Return a strategy for one element of a field."""
    kind = field.cpp_type
    if kind in _RANGES:
        low, high = _RANGES[kind]
        few = [n for n in (0, 1, 2, 64, 65, 4097, 10**6, 2**53, -1, low, high) if low <= n <= high]
        return st.sampled_from(few) | st.integers(low, high)
    if kind == Field.CPPTYPE_MESSAGE:
        return any_message(field.message_type)
    if field.type == Field.TYPE_BYTES:
        return _bytes
    return {
        Field.CPPTYPE_BOOL: st.booleans(),
        Field.CPPTYPE_STRING: _texts,
    }.get(kind, _floats)


def any_message(descriptor: Any) -> st.SearchStrategy[Any]:
    """Return a strategy for any message of a type."""
    return st.builds(
        _build, st.just(descriptor), st.fixed_dictionaries({}, optional=_values(descriptor))
    )


def _values(descriptor: Any) -> dict[str, st.SearchStrategy[Any]]:
    return {field.name: _deferred_field_values(field) for field in descriptor.fields}


def _deferred_field_values(field: Any) -> st.SearchStrategy[Any]:
    return st.deferred(lambda: _field_values(field))


def _field_values(field: Any) -> st.SearchStrategy[Any]:
    """Return a strategy for a whole field."""
    if is_map(field):
        keys, values = (field.message_type.fields_by_name[name] for name in ("key", "value"))
        return st.dictionaries(element_values(keys), element_values(values), max_size=3)
    if not field.is_repeated:
        return element_values(field)
    one = element_values(field)
    is_number = field.cpp_type not in (Field.CPPTYPE_MESSAGE, Field.CPPTYPE_STRING)
    times = (17, 70, 5000) if is_number and field.type != Field.TYPE_BYTES else (9,)
    many = st.builds(lambda value, times: [value] * times, one, st.sampled_from(times))
    return st.lists(one, max_size=3) | many


def _build(descriptor: Any, values: dict[str, Any]) -> Any:
    message = message_factory.GetMessageClass(descriptor)()
    for name, value in values.items():
        _set(message, descriptor.fields_by_name[name], value)
    return message


def _set(message: Any, field: Any, value: Any) -> None:
    message.ClearField(field.name)
    if is_map(field):
        found = getattr(message, field.name)
        for key, one in value.items():
            if isinstance(one, int | float | str | bytes):
                found[key] = one
            else:
                found[key].CopyFrom(one)
    elif field.is_repeated:
        getattr(message, field.name).extend(value)
    elif field.cpp_type == Field.CPPTYPE_MESSAGE:
        getattr(message, field.name).CopyFrom(value)
    else:
        setattr(message, field.name, value)


@st.composite
def changed_message(draw: Any, right: Any) -> Any:
    """Return a strategy for valid messages in which some fields are replaced by any value."""
    message = type(right)()
    message.CopyFrom(right)
    for _ in range(draw(st.integers(0, 2))):
        parts = [part for part in submessages(message) if part.DESCRIPTOR.fields]
        if parts:
            part = draw(st.sampled_from(parts))
            field = draw(st.sampled_from(list(part.DESCRIPTOR.fields)))
            _set(part, field, draw(_field_values(field)))
    return message


def serialized(message: Any) -> st.SearchStrategy[bytes]:
    """Return a strategy for bytes: some with unknown fields, invalid text, a missing end."""
    content = message.SerializeToString()
    return st.sampled_from(
        (
            content,
            content,
            content,
            content + b"\xc2\x3e\x03abc",  # field 1000
            content.replace(SECRET.encode(), b"\xff\xfe\x80\xc0\xaf\xed"),
            content[: len(content) * 2 // 3],
        )
    )


def fields(descriptor: Any, seen: set[str] | None = None) -> Iterator[Any]:
    """Return every field of a message and of the messages in it."""
    seen = set() if seen is None else seen
    if descriptor.full_name in seen:
        return
    seen.add(descriptor.full_name)
    for field in descriptor.fields:
        yield field
        if field.message_type is not None:
            yield from fields(field.message_type, seen)
