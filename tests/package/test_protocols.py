"""The protocols keep their promise: elements are added, and none changes or disappears.

``protocols.txt`` lists every element of every protocol, and the paths of HTTP/JSON. After adding
one, write the file again with ``python -m tests.package.test_protocols``; ``git diff`` may show new
lines only.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from google.protobuf.descriptor import (
    Descriptor,
    EnumDescriptor,
    FieldDescriptor,
    FileDescriptor,
    ServiceDescriptor,
)

from presage.collectives.v1 import arbiter_pb2
from presage.schedulers.v1 import cluster_pb2
from presage.serving.rest.routes import ROUTES
from presage.serving.v1 import prediction_pb2

LISTED = Path(__file__).with_name("protocols.txt")
PROTOCOLS = (prediction_pb2, cluster_pb2, arbiter_pb2)
_SCALARS = {
    number: name.removeprefix("TYPE_").lower()
    for name, number in vars(FieldDescriptor).items()
    if name.startswith("TYPE_")
}


def elements(file: FileDescriptor) -> Iterator[str]:
    """Yield a line for each field, enum value and method: name, number, type."""
    for message in file.message_types_by_name.values():
        yield from _of_message(message)
    for enum in file.enum_types_by_name.values():
        yield from _of_enum(enum)
    for service in file.services_by_name.values():
        yield from _of_service(service)


def _of_message(message: Descriptor) -> Iterator[str]:
    for field in message.fields:
        one_of = field.containing_oneof
        words = [
            f"{message.full_name}.{field.name} = {field.number}:",
            "repeated" if field.is_repeated else "",
            _type_of(field),
            "" if one_of is None else f"in {one_of.name}",
        ]
        yield " ".join(filter(None, words))
    for nested in message.nested_types:
        yield from _of_message(nested)
    for enum in message.enum_types:
        yield from _of_enum(enum)


def _type_of(field: FieldDescriptor) -> str:
    of_field = field.message_type or field.enum_type
    return _SCALARS[field.type] if of_field is None else str(of_field.full_name)


def _of_enum(enum: EnumDescriptor) -> Iterator[str]:
    for value in enum.values:
        yield f"{enum.full_name}.{value.name} = {value.number}"


def _of_service(service: ServiceDescriptor) -> Iterator[str]:
    for method in service.methods:
        request, response = (
            f"{'stream ' if streams else ''}{kind.full_name}"
            for streams, kind in (
                (method.client_streaming, method.input_type),
                (method.server_streaming, method.output_type),
            )
        )
        yield f"{method.full_name}({request}) returns ({response})"


def all_elements() -> list[str]:
    """Return the lines of all protocols, sorted."""
    lines = [line for module in PROTOCOLS for line in elements(module.DESCRIPTOR)]
    routes = [f"{one.verb} {one.path} = {one.descriptor.full_name}" for one in ROUTES]
    return sorted((*lines, *routes))


def test_no_element_of_a_protocol_changes_or_disappears():
    missing = set(LISTED.read_text().splitlines()) - set(all_elements())
    assert not missing, "clients of earlier versions use these elements; restore them"


def test_every_element_of_a_protocol_is_listed():
    new = set(all_elements()) - set(LISTED.read_text().splitlines())
    assert not new, "run `python -m tests.package.test_protocols` to promise these elements"


@pytest.mark.parametrize(
    "line",
    [
        "presage.v1.Forecast.median = 1: double",
        "presage.v1.PredictionService.Predict(presage.v1.PredictRequest) returns "
        "(presage.v1.PredictResponse)",
    ],
)
def test_elements_are_described_by_number_and_type(line):
    assert line in all_elements()


if __name__ == "__main__":
    LISTED.write_text("\n".join(all_elements()) + "\n")
