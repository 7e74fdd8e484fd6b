"""OpenAPI 3.1 document of the HTTP API, from the descriptors and comments of the ``.proto`` file.

After a change of the protocol or of the routes, write the document again, with grpcio-tools:
``python -m presage.serving.rest.openapi``
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from google.protobuf.descriptor import (
    Descriptor,
    EnumDescriptor,
    FieldDescriptor,
    MethodDescriptor,
)
from google.protobuf.descriptor_pb2 import FileDescriptorSet

from presage.serving.rest.routes import HEALTH_PATH, OPENAPI_PATH, ROUTES, Route

Json = dict[str, Any]
Comments = Mapping[str, str]

DOCUMENT = Path(__file__).with_name("openapi.json")
_PROTO = "presage/serving/v1/prediction.proto"
_PREFIX = "presage.v1."
_WORDS = {"type": "string", "enum": ["NaN", "Infinity", "-Infinity"]}
_DOUBLE: Json = {"oneOf": [{"type": "number", "format": "double"}, _WORDS]}
_INT64: Json = {
    "type": ["string", "integer"], "format": "int64", "pattern": "^-?[0-9]+$",
    "description": "A string in responses.",
}  # fmt: skip
_SCALARS: Mapping[int, Json] = {
    FieldDescriptor.TYPE_DOUBLE: _DOUBLE,
    FieldDescriptor.TYPE_STRING: {"type": "string"},
    FieldDescriptor.TYPE_BOOL: {"type": "boolean"},
    FieldDescriptor.TYPE_BYTES: {"type": "string", "contentEncoding": "base64"},
    FieldDescriptor.TYPE_INT64: _INT64,
    FieldDescriptor.TYPE_UINT64: _INT64,
    FieldDescriptor.TYPE_INT32: {"type": "integer", "format": "int32"},
    FieldDescriptor.TYPE_SINT32: {"type": "integer", "format": "int32"},
    FieldDescriptor.TYPE_UINT32: {"type": "integer", "format": "uint32", "minimum": 0},
    FieldDescriptor.TYPE_FIXED32: {"type": "integer", "format": "uint32", "minimum": 0},
}
_PROBLEM: Json = {
    "type": "object",
    "description": "Problem details (RFC 9457).",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string", "description": "What is wrong, and what to do."},
        "grpcStatus": {
            "type": "string",
            "description": "Status of the call, such as INVALID_ARGUMENT.",
        },
        "requestId": {"type": "string", "description": "Id in the access log of the server."},
    },
}
_HEALTH: Json = {
    "type": "object",
    "required": ["status"],
    "properties": {"status": {"type": "string", "enum": ["SERVING", "NOT_SERVING"]}},
}
_PARAMETERS: Json = {
    "timeout": {
        "name": "Grpc-Timeout", "in": "header", "schema": {"type": "string"}, "example": "500m",
        "description": "Time limit: at most 8 digits and a unit (H, M, S, m, u, n).",
    },
    "requestId": {
        "name": "X-Request-Id", "in": "header", "schema": {"type": "string"},
        "description": "Id of the request in the access log; the response repeats it.",
    },
}  # fmt: skip
_INFO = """\
The unary methods of `presage.v1.PredictionService`, by the JSON mapping of protobuf. Fields may be
omitted unless a description requires them. Names of the `.proto` file are accepted too.
"""


def document(comments: Comments) -> Json:
    """Return the document; ``comments`` are those of the protocol, by full name."""
    schemas: Json = {}
    paths: Json = {}
    for route in ROUTES:
        for kind in (route.descriptor.input_type, route.descriptor.output_type):
            _add_message(schemas, kind, comments)
        paths.setdefault(route.path, {})[route.verb.lower()] = _operation(route, comments)
    paths[HEALTH_PATH] = {"get": _health_operation()}
    paths[OPENAPI_PATH] = {"get": _document_operation()}
    return {
        "openapi": "3.1.1",
        "info": {"title": "Presage", "version": "v1", "description": _INFO},
        "paths": paths,
        "components": {
            "schemas": {**dict(sorted(schemas.items())), "Problem": _PROBLEM, "Health": _HEALTH},
            "responses": {"Problem": {
                "description": "The request was rejected, or it failed.",
                "content": {"application/problem+json": {"schema": _reference("Problem")}},
            }},
            "parameters": _PARAMETERS,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }  # fmt: skip


def _operation(route: Route, comments: Comments) -> Json:
    method = route.descriptor
    headers = [{"$ref": f"#/components/parameters/{name}"} for name in _PARAMETERS]
    operation: Json = {
        "operationId": method.name,
        "description": comments.get(method.full_name, ""),
        # A server without tokens permits some calls to callers without one.
        "security": [{"token": []}, {}],
        "parameters": [*_query(route, comments), *headers],
    }
    if route.verb == "POST":
        operation["requestBody"] = {"content": _content(_name(method.input_type))}
    operation["responses"] = {
        "200": {"description": "Response.", "content": _content(_name(method.output_type))},
        "default": {"$ref": "#/components/responses/Problem"},
    }
    return operation


def _query(route: Route, comments: Comments) -> Sequence[Json]:
    if route.verb == "POST":
        return ()
    return [
        {
            "name": field.json_name, "in": "query", "schema": _field(field, comments),
            "description": comments.get(field.full_name, ""),
        }
        for field in route.descriptor.input_type.fields
    ]  # fmt: skip


def _health_operation() -> Json:
    content = _content("Health")
    return {
        "operationId": "Health",
        "description": "Health of the server, for probes; needs no token.",
        "responses": {
            "200": {"description": "The server is serving.", "content": content},
            "503": {"description": "The server is starting or stopping.", "content": content},
        },
    }


def _document_operation() -> Json:
    content = {"application/json": {"schema": {"type": "object"}}}
    return {
        "operationId": "OpenApi",
        "description": "This document; needs no token.",
        "responses": {"200": {"description": "OpenAPI 3.1.", "content": content}},
    }


def _add_message(schemas: Json, message: Descriptor, comments: Comments) -> None:
    name = _name(message)
    if name in schemas:
        return
    schema: Json = {"type": "object", "additionalProperties": False}
    if comment := comments.get(message.full_name):
        schema["description"] = comment
    schemas[name] = schema
    schema["properties"] = {field.json_name: _field(field, comments) for field in message.fields}
    for field in message.fields:
        kind = _value_of(field).message_type
        if kind is not None:
            _add_message(schemas, kind, comments)
        if field.enum_type is not None:
            schemas[_name(field.enum_type)] = _enum(field.enum_type, comments)


def _field(field: FieldDescriptor, comments: Comments) -> Json:
    """Return the schema of a field."""
    schema = _single(_value_of(field))
    if _is_map(field):
        schema = {"type": "object", "additionalProperties": schema}
    elif field.is_repeated:
        schema = {"type": "array", "items": schema}
    if comment := comments.get(field.full_name):
        return {**schema, "description": comment}
    return schema


def _single(field: FieldDescriptor) -> Json:
    kind = field.message_type or field.enum_type
    return dict(_SCALARS[field.type]) if kind is None else _reference(_name(kind))


def _enum(enum: EnumDescriptor, comments: Comments) -> Json:
    schema: Json = {"type": "string", "enum": [value.name for value in enum.values]}
    if comment := comments.get(enum.full_name):
        schema["description"] = comment
    return schema


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _value_of(field: FieldDescriptor) -> FieldDescriptor:
    """Return the field of the values of a map, and any other field itself."""
    if field.message_type is None or not _is_map(field):
        return field
    return field.message_type.fields_by_name["value"]


def _name(kind: Descriptor | EnumDescriptor | MethodDescriptor) -> str:
    return kind.full_name.removeprefix(_PREFIX)


def _content(name: str) -> Json:
    return {"application/json": {"schema": _reference(name)}}


def _reference(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


def read_comments(source: Path) -> Comments:
    """Return the comments of the protocol by full name, from the folder of ``presage``.

    Raises
    ------
    ModuleNotFoundError
        grpcio-tools is not installed.
    """
    from grpc_tools import protoc

    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "descriptors"
        words = ["protoc", f"-I{source}", "--include_source_info", f"-o{out}", _PROTO]
        if protoc.main(words):
            raise ValueError(f"{_PROTO} cannot be compiled")
        file = FileDescriptorSet.FromString(out.read_bytes()).file[0]
    found = {}
    for location in file.source_code_info.location:
        comment = (location.leading_comments or location.trailing_comments).strip()
        if comment and (name := _name_at(file, location.path)):
            found[name] = "\n".join(line.strip() for line in comment.splitlines())
    return found


def _name_at(file: Any, path: Sequence[int]) -> str:
    """Return the full name of the element at a path of field numbers and positions."""
    element, names = file, [file.package]
    for number, position in zip(path[::2], path[1::2], strict=False):
        element = getattr(element, element.DESCRIPTOR.fields_by_number[number].name)[position]
        names.append(element.name)
    return ".".join(names) if len(path) > 1 and len(path) % 2 == 0 else ""


def text(source: Path) -> str:
    """Return the document as text, from the folder of ``presage``."""
    return json.dumps(document(read_comments(source)), indent=1) + "\n"


if __name__ == "__main__":
    import presage

    DOCUMENT.write_text(text(Path(presage.__file__).parents[1]))
    sys.stdout.write(f"wrote {DOCUMENT}\n")
