"""The protocol's messages are the ones that its clients know, and live beside theirs."""

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
def theirs():
    """Messages of an unmodified tritonclient, in this process."""
    return pytest.importorskip("tritonclient.grpc.service_pb2")


def described(field):
    """All that matters of a field on the wire and in code."""
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
    """Every field of a message and of those inside it, by full name."""
    found = {field.full_name: described(field) for field in descriptor.fields}
    found |= {descriptor.full_name: descriptor.GetOptions().map_entry}
    for inner in descriptor.nested_types:
        found |= fields(inner)
    return found


@pytest.mark.parametrize("name", sorted(FILE.message_types_by_name))
def test_every_message_is_tritonclients_field_by_field(theirs, name):
    ours = fields(FILE.message_types_by_name[name])
    standard = {k: v for k, v in ours.items() if not k.startswith((OURS, OURS_ENTRY))}

    assert standard == fields(theirs.DESCRIPTOR.message_types_by_name[name])


@pytest.mark.parametrize("name", METHODS)
def test_every_method_is_tritonclients(theirs, name):
    ours = FILE.services_by_name[SERVICE].methods_by_name[name]
    their = theirs.DESCRIPTOR.services_by_name[SERVICE].methods_by_name[name]

    assert ours.full_name == their.full_name == f"{SERVICE_NAME}.{name}"
    assert ours.input_type.full_name == their.input_type.full_name
    assert ours.output_type.full_name == their.output_type.full_name
    assert (their.client_streaming, their.server_streaming) == (False, False)


def test_neither_knows_of_the_other_in_one_process(theirs):
    assert theirs.ModelInferRequest.DESCRIPTOR.file.pool is not POOL
    assert theirs.ModelInferRequest is not messages.ModelInferRequest


@pytest.mark.parametrize("make", [raw_request, typed_request])
def test_what_one_writes_the_other_reads(theirs, make):
    ours = make("memory", {"features": features(2)}, id="7", model_version="1")
    ours.parameters["p"].string_param = "v"

    read = theirs.ModelInferRequest.FromString(ours.SerializeToString())

    assert list(read.inputs[0].shape) == [2, WIDTH]
    assert read.parameters["p"].string_param == "v"
    assert messages.ModelInferRequest.FromString(read.SerializeToString()) == ours


def test_metadata_of_ours_is_read_by_who_does_not_know_its_parameters(theirs):
    ours = messages.ModelMetadataResponse(name="memory", platform="p")
    ours.parameters["unit"].string_param = "bytes"

    read = theirs.ModelMetadataResponse.FromString(ours.SerializeToString())

    assert (read.name, read.platform) == ("memory", "p")


def test_the_default_pool_stays_free_for_others():
    """In a process of its own: here, another test may have brought tritonclient's."""
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
