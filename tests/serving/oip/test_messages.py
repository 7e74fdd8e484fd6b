"""The protocol's messages equal those of its clients, and coexist with them in a process."""

import subprocess
import sys

import pytest
from google.protobuf import descriptor_pool

from presage.serving.oip import messages
from presage.serving.oip.messages import FILE, METHODS, POOL, SERVICE, SERVICE_NAME, message
from presage.serving.v1 import prediction_pb2
from tests.serving.oip.requests import WIDTH, features, raw_request, typed_request

# The one field of ours that the standard has not, and the message its map is made of.
OURS = "inference.ModelMetadataResponse.parameters"
OURS_ENTRY = "inference.ModelMetadataResponse.ParametersEntry"


@pytest.fixture(scope="module")
def triton_messages():
    """Messages of an unmodified tritonclient in this process."""
    return pytest.importorskip("tritonclient.grpc.service_pb2")


def field_description(field):
    """Return the properties of a field that matter on the wire and in code."""
    return {
        "number": field.number,
        "type": field.type,
        "is_repeated": field.is_repeated,
        "message": field.message_type and field.message_type.full_name,
        "oneof": field.containing_oneof and field.containing_oneof.name,
        "packed": field.is_packed,
        "json_name": field.json_name,
        "has_presence": field.has_presence,
    }


def fields(descriptor):
    """Return every field of a message and of its submessages, by full name."""
    found = {field.full_name: field_description(field) for field in descriptor.fields}
    found |= {descriptor.full_name: descriptor.GetOptions().map_entry}
    for inner in descriptor.nested_types:
        found |= fields(inner)
    return found


@pytest.mark.parametrize("name", sorted(FILE.message_types_by_name))
def test_every_message_is_tritonclients_field_by_field(triton_messages, name):
    ours = fields(FILE.message_types_by_name[name])
    standard = {k: v for k, v in ours.items() if not k.startswith((OURS, OURS_ENTRY))}

    assert standard == fields(triton_messages.DESCRIPTOR.message_types_by_name[name])


@pytest.mark.parametrize("name", METHODS)
def test_every_method_is_tritonclients(triton_messages, name):
    ours = FILE.services_by_name[SERVICE].methods_by_name[name]
    their = triton_messages.DESCRIPTOR.services_by_name[SERVICE].methods_by_name[name]

    assert ours.full_name == their.full_name == f"{SERVICE_NAME}.{name}"
    assert ours.input_type.full_name == their.input_type.full_name
    assert ours.output_type.full_name == their.output_type.full_name
    assert (their.client_streaming, their.server_streaming) == (False, False)


def test_both_sets_of_messages_are_separate_in_one_process(triton_messages):
    assert triton_messages.ModelInferRequest.DESCRIPTOR.file.pool is not POOL
    assert triton_messages.ModelInferRequest is not messages.ModelInferRequest


@pytest.mark.parametrize("make", [raw_request, typed_request])
def test_messages_of_each_are_read_by_the_other(triton_messages, make):
    ours = make("memory", {"features": features(2)}, id="7", model_version="1")
    ours.parameters["p"].string_param = "v"

    read = triton_messages.ModelInferRequest.FromString(ours.SerializeToString())

    assert list(read.inputs[0].shape) == [2, WIDTH]
    assert read.parameters["p"].string_param == "v"
    assert messages.ModelInferRequest.FromString(read.SerializeToString()) == ours


def test_metadata_is_read_by_clients_that_do_not_know_its_parameters(triton_messages):
    ours = messages.ModelMetadataResponse(name="memory", platform="p")
    ours.parameters["unit"].string_param = "bytes"

    read = triton_messages.ModelMetadataResponse.FromString(ours.SerializeToString())

    assert (read.name, read.platform) == ("memory", "p")


def test_the_default_descriptor_pool_stays_free():
    """Run in a separate process: another test may have imported tritonclient's here."""
    code = (
        "import presage.serving.oip.messages\n"
        "from google.protobuf import descriptor_pool\n"
        "descriptor_pool.Default().FindMessageTypeByName('inference.ModelInferRequest')\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True
    )

    assert "KeyError" in ended.stderr


def test_the_file_joins_other_services_in_one_pool_for_reflection():
    pool = descriptor_pool.DescriptorPool()
    for file in (prediction_pb2.DESCRIPTOR, FILE):
        pool.AddSerializedFile(file.serialized_pb)

    found = pool.FindFileContainingSymbol(SERVICE_NAME)
    assert found.name == "presage/inference.proto"
    assert set(found.services_by_name[SERVICE].methods_by_name) == set(METHODS)


def test_each_method_has_a_request_and_a_response():
    for method in METHODS:
        assert message(f"{method}Request").DESCRIPTOR.file is FILE
        assert message(f"{method}Response").DESCRIPTOR.file is FILE
