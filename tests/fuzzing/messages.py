"""Protobuf messages, changed where their structure is: the fuzzers' way past a parser.

Works by a message's own descriptor, so that it needs to know nothing of ONNX or TensorFlow.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from google.protobuf.descriptor import FieldDescriptor as Field
from google.protobuf.message import DecodeError
from google.protobuf.text_format import ParseError

from tests.fuzzing.reader import Sample

_BYTES_CHANGED = 0.25  # of all files
MOST_BYTES = 1 << 20  # a message that grew beyond this is changed no further
_INTEGERS = (
    0, 1, 2, 3, 4, 7, 16, 63, 64, 65, 255, 256, 4096, 10**5, 10**6, 10**8, 10**9,
    2**31 - 1, 2**31, 2**32, 2**40, 2**62, 2**63 - 1, -1, -2, -(2**31), -(2**63),
)  # fmt: skip
_FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e9, 1e308, -1e308, 5e-324, float("inf"), float("nan"))
_TEXTS = (
    "", "\0", " ", ":", ":0", "x:99999999", "x:²", "^", "../../etc/passwd", "/dev/zero", "é\u202e",
    "x" * 3000, "%s%n{}", "...", "ij,jk->ik", "a...b,...->...",
)  # fmt: skip
_INTEGER_TYPES = {
    Field.CPPTYPE_INT32, Field.CPPTYPE_INT64, Field.CPPTYPE_UINT32, Field.CPPTYPE_UINT64,
}  # fmt: skip
_FLOAT_TYPES = {Field.CPPTYPE_FLOAT, Field.CPPTYPE_DOUBLE}


def mutated(message: Any, donors: Sequence[Any], rng: random.Random) -> Any:
    """A copy of a message with a few changes; ``donors`` lend it their parts and their texts."""
    changed = type(message)()
    changed.CopyFrom(message)
    pool = _texts([changed, *donors[:1]])
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        if changed.ByteSize() > MOST_BYTES:
            break
        try:
            rng.choice(_CHANGES)(changed, donors, pool, rng)
        except (ValueError, TypeError, OverflowError):  # the field does not take such a value
            continue
    return changed


def file_mutated(
    sample: Sample,
    donors: Sequence[Sample],
    rng: random.Random,
    parse: Callable[[Sample], Any],
    write: Callable[[Any], bytes],
) -> Sample:
    """A message's file, changed in its structure; in its bytes now and then, or if it has none."""
    messages = []
    for one in (sample, *donors):
        try:
            messages.append(parse(one))
        except (DecodeError, ParseError, ValueError):
            continue
    if rng.random() < _BYTES_CHANGED or not messages:
        contents = [donor.content for donor in donors]
        return Sample(sample.suffix, bytes_mutated(sample.content, contents, rng))
    return Sample(sample.suffix, write(mutated(messages[0], messages[1:], rng)))


def submessages(message: Any) -> Iterator[Any]:
    """The message and all messages in it, each before those in it."""
    waiting = [message]
    while waiting:  # no recursion: they may be deep
        part = waiting.pop()
        yield part
        inside: list[Any] = []
        for field, value in part.ListFields():
            if field.type != Field.TYPE_MESSAGE:
                continue
            if is_map(field):
                if field.message_type.fields_by_name["value"].type == Field.TYPE_MESSAGE:
                    inside += value.values()
            elif field.is_repeated:
                inside += value
            else:
                inside.append(value)
        waiting += reversed(inside)


def is_map(field: Any) -> bool:
    """Whether a field is a map, which Python shows as a dict."""
    return bool(
        field.type == Field.TYPE_MESSAGE
        and field.is_repeated
        and field.message_type.GetOptions().map_entry
    )


def _texts(messages: Sequence[Any]) -> list[str]:
    """Every text in some messages: names of tensors, operators, functions."""
    found: dict[str, None] = {}
    for whole in messages:
        for part in submessages(whole):
            for field, value in part.ListFields():
                if field.type == Field.TYPE_STRING:
                    found.update(dict.fromkeys(value if field.is_repeated else [value]))
    return [*found, *_TEXTS]


def _anything(field: Any, pool: Sequence[str], rng: random.Random) -> Any:
    """A value for a field of one number or text."""
    kind = field.cpp_type
    if kind in _INTEGER_TYPES:
        return rng.choice(_INTEGERS) if rng.random() < 0.8 else rng.getrandbits(rng.randint(1, 63))
    if kind in _FLOAT_TYPES:
        return rng.choice(_FLOATS)
    if kind == Field.CPPTYPE_BOOL:
        return rng.random() < 0.5
    if kind == Field.CPPTYPE_ENUM:
        values = [value.number for value in field.enum_type.values]
        return rng.choice([*values, 77, 2**31 - 1])
    text = rng.choice(pool)
    if field.type == Field.TYPE_STRING:
        return text
    return rng.choice((b"", text.encode(), rng.randbytes(rng.choice((1, 8, 64))), b"\xff\xfe\x80"))


Change = Callable[[Any, Sequence[Any], Sequence[str], random.Random], None]


def _set_value(whole: Any, _donors: Sequence[Any], pool: Sequence[str], rng: random.Random) -> None:
    """One number or text, whether there was one before or not."""
    part = rng.choice(list(submessages(whole)))
    there = [field for field, _ in part.ListFields()]
    fields = there if there and rng.random() < 0.7 else part.DESCRIPTOR.fields
    field = rng.choice(fields)
    if field.type == Field.TYPE_MESSAGE:
        if not field.is_repeated:
            getattr(part, field.name).SetInParent()
        elif not is_map(field):
            getattr(part, field.name).add()
        return
    value = _anything(field, pool, rng)
    if not field.is_repeated:
        setattr(part, field.name, value)
        return
    values = getattr(part, field.name)
    if values and rng.random() < 0.6:
        values[rng.randrange(len(values))] = value
    else:
        values.extend([value] * rng.choice((1, 1, 2, 70, 5000)))


def _remove(whole: Any, _donors: Sequence[Any], _pool: Sequence[str], rng: random.Random) -> None:
    """A field, or one of its elements."""
    part = rng.choice(list(submessages(whole)))
    there = part.ListFields()
    if not there:
        return
    field, value = rng.choice(there)
    if is_map(field):
        del value[rng.choice(list(value))]
    elif field.is_repeated and rng.random() < 0.8:
        del value[rng.randrange(len(value))]
    else:
        part.ClearField(field.name)


def _repeat(whole: Any, _donors: Sequence[Any], _pool: Sequence[str], rng: random.Random) -> None:
    """An element of a list, once more or very often, perhaps elsewhere in the list."""
    part = rng.choice(list(submessages(whole)))
    lists = [(f, v) for f, v in part.ListFields() if f.is_repeated and not is_map(f)]
    if not lists:
        return
    field, values = rng.choice(lists)
    elements = list(values)
    chosen = rng.choice(elements)
    at = rng.randrange(len(elements) + 1)
    size = chosen.ByteSize() if field.type == Field.TYPE_MESSAGE else 16
    times = min(rng.choice((1, 1, 1, 3, 300)), 1 + MOST_BYTES // (8 * max(1, size)))
    copies = (
        [type(values[0]).FromString(e.SerializeToString()) for e in elements]
        if (field.type == Field.TYPE_MESSAGE)
        else elements
    )
    again = copies[elements.index(chosen)]
    del values[:]
    values.extend([*copies[:at], *([again] * times), *copies[at:]])


def _reorder(whole: Any, _donors: Sequence[Any], _pool: Sequence[str], rng: random.Random) -> None:
    """The elements of a list the other way round."""
    part = rng.choice(list(submessages(whole)))
    lists = [(f, v) for f, v in part.ListFields() if f.is_repeated and not is_map(f)]
    if lists:
        _, values = rng.choice(lists)
        values.reverse()


def _graft(whole: Any, donors: Sequence[Any], _pool: Sequence[str], rng: random.Random) -> None:
    """A part in the place of another one of its type: a graph may come to be inside itself."""
    parts = list(submessages(whole))
    place = rng.choice(parts[1:] or parts)
    giver = rng.choice([whole, *donors])
    alike = [part for part in submessages(giver) if part.DESCRIPTOR is place.DESCRIPTOR]
    if alike:
        chosen = rng.choice(alike)
        copy = type(chosen)()
        copy.CopyFrom(chosen)
        place.CopyFrom(copy)


def _nest(whole: Any, _donors: Sequence[Any], _pool: Sequence[str], rng: random.Random) -> None:
    """A message inside itself, many times over, where its type allows it."""
    depth = rng.choice((3, 20, 70, 99))
    parts = list(submessages(whole))
    outer = rng.choice(parts)
    inner = [p for p in submessages(outer) if p.DESCRIPTOR is outer.DESCRIPTOR and p is not outer]
    if not inner:
        return
    place = inner[-1]
    for _ in range(depth):
        if outer.ByteSize() > MOST_BYTES // 8:
            return
        copy = type(outer)()
        copy.CopyFrom(outer)
        place.CopyFrom(copy)
        found = [p for p in submessages(place) if p.DESCRIPTOR is outer.DESCRIPTOR]
        place = found[-1]


_CHANGES: Sequence[Change] = (
    _set_value, _set_value, _set_value, _set_value, _remove, _repeat, _reorder, _graft, _nest,
)  # fmt: skip


def bytes_mutated(content: bytes, donors: Sequence[bytes], rng: random.Random) -> bytes:
    """Bytes with bits turned, parts cut out, doubled, or taken from another file."""
    out = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
        at = rng.randrange(len(out) + 1)
        length = rng.choice((1, 2, 4, 16, 256))
        match rng.randrange(7):
            case 0 if at < len(out):
                out[at] ^= 1 << rng.randrange(8)
            case 1:
                del out[at : at + length]
            case 2:
                out[at:at] = rng.randbytes(length)
            case 3:
                out[at:at] = out[at : at + length] * rng.choice((1, 2, 50))
            case 4:
                del out[at:]
            case 5:
                other = rng.choice(donors)
                start = rng.randrange(len(other) + 1)
                out[at:] = other[start:]
            case _ if at < len(out):
                out[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF))
    return bytes(out)
