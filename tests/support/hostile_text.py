"""Texts that attack a terminal, and values of any class that hold them wherever a text may be."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, get_args, get_origin, get_type_hints

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import strategies as st

from presage.system.text.printable import is_visible

ATTACKS = (
    "[/bold]",
    "[bold red]red[/]",
    "[link=file:///etc/passwd]x[/link]",
    ":warning:",
    "\x1b[2J\x1b[H",
    "\x1b]0;title\x07",
    "\x1b]52;c;cm0gLXJm\x07",
    "\x9b31m",
    "a\rb",
    "a\nforged line",
    "\u202egnp.exe",
    "\u2066\u2067\u2069",
    "zero\u200bwidth\u200d\ufeff",
    "\u3164",
    "z" + "\u0301" * 50,
    "\ud800",
    "名" * 300,
    "<script>alert(1)</script>",
    "\\[/bold]",
    "{}{0}%s",
)

texts = st.one_of(st.sampled_from(ATTACKS), st.text(max_size=40), st.text("[]/\\ab=#\x1b\u202e"))


def check_safe(printed: str) -> None:
    """Nothing but visible characters and ends of lines was printed."""
    bad = {c for c in printed if not (is_visible(c) or c == "\n")}
    assert not bad, (bad, printed)


def message(cls: type[Message], text: str, depth: int = 3) -> Any:
    """A message with ``text`` in every text field, also of messages in it."""
    made = cls()
    for field in cls.DESCRIPTOR.fields:
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            continue
        if field.message_type is not None:
            if depth:
                inner_type: Any = field.message_type
                inner_class = GetMessageClass(inner_type)
                inner = message(inner_class, text, depth - 1)
                if field.is_repeated:
                    getattr(made, field.name).append(inner)
                else:
                    getattr(made, field.name).CopyFrom(inner)
        elif field.type == FieldDescriptor.TYPE_STRING:
            said = text.encode(errors="replace").decode()  # a message takes no surrogates
            if field.is_repeated:
                getattr(made, field.name).append(said)
            else:
                setattr(made, field.name, said)
        elif not field.is_repeated and field.type not in (
            FieldDescriptor.TYPE_BYTES,
            FieldDescriptor.TYPE_ENUM,
        ):
            setattr(made, field.name, 1)
    return made


def value(hint: Any, text: str) -> Any:
    """A value of a type, with ``text`` in every place for one."""
    args = get_args(hint)
    origin = get_origin(hint)
    if origin in (types.UnionType, typing.Union):
        return value(args[0], text)
    if origin is tuple:
        return tuple(value(arg, text) for arg in args if arg is not ...)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {value(args[0], text): value(args[1], text)}
    if origin is not None:
        return (value(args[0], text),)
    if is_dataclass(hint):
        return made(hint, text)  # type: ignore[arg-type]
    return {str: text, int: 1, float: 1.0, bool: True, Any: text}.get(hint)


def made(cls: type[Any], text: str, **given: Any) -> Any:
    """An instance of a dataclass; fields with a default keep it."""
    wanted = [f for f in fields(cls) if f.default is MISSING and f.name not in given]
    hints = get_type_hints(cls) if wanted else {}
    for field in wanted:
        given[field.name] = value(hints[field.name], text)
    return cls(**given)
