"""Canonical JSON of protobuf messages (https://protobuf.dev/programming-guides/json).

Names are in lowerCamelCase, and requests may have those of the ``.proto`` file too. Responses have
all fields without presence, so that ``false`` and 0 are visible.
"""

from __future__ import annotations

import json
import re
from typing import Any

from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor
from google.protobuf.message_factory import GetMessageClass

from presage.errors import InvalidRequestError

_LOAD = "Failed to load JSON: "
_PLACE = re.compile(r' at "?(\w+(?:\.\w+|\[[^\]]*\])*)"?\.*$')
_FIELDS = re.compile(r"(Failed to parse \w+ field: )+")
_KEY = re.compile(r"\[[^\]]*[^\]0-9][^\]]*\]")  # of a map, chosen by the client
_WHITESPACE = " \t\r\n"


def serialize_json(body: bytes, descriptor: Descriptor) -> bytes:
    """Return the serialized message of a JSON body; an empty body is an empty message.

    Raises
    ------
    InvalidRequestError
        The body is not JSON of this message; the error names the field or the position.
    """
    message: Any = GetMessageClass(descriptor)()
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequestError(
            f"the body is not UTF-8 (byte {error.start}); send JSON in UTF-8"
        ) from None
    if text.strip(_WHITESPACE):
        _parse(text, message)
    # Deterministic, so that equal requests find the response in the cache.
    content: bytes = message.SerializeToString(deterministic=True)
    return content


def _parse(text: str, message: Any) -> None:
    # json_format takes an empty list for an empty message.
    if not text.lstrip(_WHITESPACE).startswith("{"):
        raise InvalidRequestError(
            f"the body is not a JSON object; send a {message.DESCRIPTOR.full_name} as in "
            "/openapi.json"
        )
    try:
        json_format.Parse(text, message)
    except (json_format.ParseError, RecursionError, ValueError) as error:
        raise InvalidRequestError(f"{_reason(str(error))}; see /openapi.json") from None


def _reason(error: str) -> str:
    """Return the reason in an error of json_format, without text of the request.

    json_format's own reasons repeat values and unknown names.
    """
    if (syntax := error.removeprefix(_LOAD)) != error:
        if "recursion" in syntax:
            return "the body is nested too deeply"
        if "duplicate key" in syntax:
            return "an object in the body has two members of one name"
        return f"the body is not JSON: {syntax.partition(';')[0].rstrip('.')}"
    first, _, more = error.partition("\n")
    place = _PLACE.search(first)
    where = _KEY.sub("[...]", place[1].partition(".")[2]) if place else ""
    if not where and (parents := _FIELDS.match(first)):
        where = ".".join(re.findall(r"parse (\w+) field", parents[0]))
    if "has no field named" in first:
        fields = ", ".join(re.findall("'(\\w+)'", more))
        return f"{where or 'the body'} has an unknown field; its fields are {fields}"
    if "NaN" in first or "Infinity" in first:
        return f'{where} is not a number of JSON; send a string such as "NaN" for it'
    return f"{where or 'the body'} has a value that its type does not permit"


def as_json(content: bytes, descriptor: Descriptor) -> bytes:
    """Return a serialized message as JSON."""
    message: Any = GetMessageClass(descriptor)()
    message.ParseFromString(content)
    fields = json_format.MessageToDict(message, always_print_fields_with_no_presence=True)
    return json.dumps(fields, separators=(",", ":"), allow_nan=False).encode() + b"\n"
