"""JSON on standard output, for programs."""

from __future__ import annotations

import json
from typing import Any

import typer


def print_json(content: Any, *, sort_keys: bool = False, allow_nan: bool = True) -> None:
    """Print a document as JSON."""
    typer.echo(json.dumps(content, indent=2, sort_keys=sort_keys, allow_nan=allow_nan))


def print_message(message: Any) -> None:
    """Print a protobuf message as one line of JSON, with the fields that are 0, false or empty."""
    typer.echo(json.dumps(message_content(message)))


def message_content(message: Any) -> dict[str, Any]:
    """Return a protobuf message as JSON content, with the fields that are 0, false or empty."""
    from google.protobuf.json_format import MessageToDict

    found: dict[str, Any] = MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return found
