"""Protobuf messages that are declared by text, without generated code."""

from __future__ import annotations

import re
from collections.abc import Collection

from google.protobuf import descriptor_pb2

_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "bool": _Field.TYPE_BOOL, "bytes": _Field.TYPE_BYTES, "double": _Field.TYPE_DOUBLE,
    "float": _Field.TYPE_FLOAT, "int32": _Field.TYPE_INT32, "int64": _Field.TYPE_INT64,
    "string": _Field.TYPE_STRING, "uint32": _Field.TYPE_UINT32, "uint64": _Field.TYPE_UINT64,
}  # fmt: skip


def add_fields(
    into: descriptor_pb2.DescriptorProto,
    body: str,
    *,
    scope: str,
    package: str,
    enums: Collection[str] = (),
) -> None:
    """Add fields to a message.

    Parameters
    ----------
    body : str
        Fields as in a .proto file: "string name = 1; repeated int64 shape = 2;". A map has keys
        of type string.
    scope : str
        Name of the message in its package, after those of the messages around it.
    package : str
        Package of the types that are no scalars.
    enums : collection of str
        Which of those types are enums; the others are messages.
    """
    for kind, field, number in re.findall(r"(\S[^;]*) (\w+) = (\d+);", body):
        added = into.field.add(name=field, number=int(number), label=_Field.LABEL_OPTIONAL)
        label, _, type_name = kind.rpartition(" ")
        if label:  # "repeated", or the "map<string," of "map<string, Type>"
            added.label = _Field.LABEL_REPEATED
        if label.startswith("map"):
            entry = into.nested_type.add(name=f"{field.title().replace('_', '')}Entry")
            entry.options.map_entry = True
            of_entry = f"string key = 1; {type_name.removesuffix('>')} value = 2;"
            add_fields(entry, of_entry, scope="", package=package, enums=enums)
            type_name = f"{scope}.{entry.name}"
        if type_name in _SCALARS:
            added.type = _SCALARS[type_name]
        else:
            added.type = _Field.TYPE_ENUM if type_name in enums else _Field.TYPE_MESSAGE
            added.type_name = f".{package}.{type_name}"
