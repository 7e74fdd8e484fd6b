"""Messages and service of the protocol in a descriptor pool of their own.

Every package with this protocol (tritonclient, kserve, mlserver) registers the same names in
protobuf's default pool, where different definitions are an import error. A separate pool avoids
conflicts with them.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from presage.errors import InvalidRequestError
from presage.system.message_fields import add_fields

PACKAGE = "inference"
SERVICE = "GRPCInferenceService"
SERVICE_NAME = f"{PACKAGE}.{SERVICE}"
# Unary methods from <method>Request to <method>Response.
METHODS = (
    "ServerLive", "ServerReady", "ServerMetadata", "ModelReady", "ModelMetadata", "ModelInfer",
)  # fmt: skip

# Names of nested messages contain the outer message, which comes first.
_MESSAGES = {
    "ServerLiveRequest": "",
    "ServerLiveResponse": "bool live = 1;",
    "ServerReadyRequest": "",
    "ServerReadyResponse": "bool ready = 1;",
    "ServerMetadataRequest": "",
    "ServerMetadataResponse": """
        string name = 1; string version = 2; repeated string extensions = 3;
    """,
    "ModelReadyRequest": "string name = 1; string version = 2;",
    "ModelReadyResponse": "bool ready = 1;",
    "ModelMetadataRequest": "string name = 1; string version = 2;",
    # Field 6 is an extension of mlserver; other clients skip it.
    "ModelMetadataResponse": """
        string name = 1; repeated string versions = 2; string platform = 3;
        repeated ModelMetadataResponse.TensorMetadata inputs = 4;
        repeated ModelMetadataResponse.TensorMetadata outputs = 5;
        map<string, InferParameter> parameters = 6;
    """,
    "ModelMetadataResponse.TensorMetadata": """
        string name = 1; string datatype = 2; repeated int64 shape = 3;
    """,
    "ModelInferRequest": """
        string model_name = 1; string model_version = 2; string id = 3;
        map<string, InferParameter> parameters = 4;
        repeated ModelInferRequest.InferInputTensor inputs = 5;
        repeated ModelInferRequest.InferRequestedOutputTensor outputs = 6;
        repeated bytes raw_input_contents = 7;
    """,
    "ModelInferRequest.InferInputTensor": """
        string name = 1; string datatype = 2; repeated int64 shape = 3;
        map<string, InferParameter> parameters = 4; InferTensorContents contents = 5;
    """,
    "ModelInferRequest.InferRequestedOutputTensor": """
        string name = 1; map<string, InferParameter> parameters = 2;
    """,
    "ModelInferResponse": """
        string model_name = 1; string model_version = 2; string id = 3;
        map<string, InferParameter> parameters = 4;
        repeated ModelInferResponse.InferOutputTensor outputs = 5;
        repeated bytes raw_output_contents = 6;
    """,
    "ModelInferResponse.InferOutputTensor": """
        string name = 1; string datatype = 2; repeated int64 shape = 3;
        map<string, InferParameter> parameters = 4; InferTensorContents contents = 5;
    """,
    "InferParameter": """
        bool bool_param = 1; int64 int64_param = 2; string string_param = 3;
        double double_param = 4; uint64 uint64_param = 5;
    """,
    "InferTensorContents": """
        repeated bool bool_contents = 1; repeated int32 int_contents = 2;
        repeated int64 int64_contents = 3; repeated uint32 uint_contents = 4;
        repeated uint64 uint64_contents = 5; repeated float fp32_contents = 6;
        repeated double fp64_contents = 7; repeated bytes bytes_contents = 8;
    """,
}
_ONEOFS = {"InferParameter": "parameter_choice"}  # contains all fields of the message


def _file() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(
        name="presage/inference.proto", package=PACKAGE, syntax="proto3"
    )
    found: dict[str, descriptor_pb2.DescriptorProto] = {}
    for name, fields in _MESSAGES.items():
        owner, _, own_name = name.rpartition(".")
        siblings = found[owner].nested_type if owner else file.message_type
        found[name] = siblings.add(name=own_name)
        add_fields(found[name], fields, scope=name, package=PACKAGE)
        if name in _ONEOFS:
            found[name].oneof_decl.add(name=_ONEOFS[name])
            for field in found[name].field:
                field.oneof_index = 0
    service = file.service.add(name=SERVICE)
    for method in METHODS:
        service.method.add(
            name=method,
            input_type=f".{PACKAGE}.{method}Request",
            output_type=f".{PACKAGE}.{method}Response",
        )
    return file


POOL = descriptor_pool.DescriptorPool()
# gRPC reflection uses its name, serialized_pb and services.
FILE = POOL.AddSerializedFile(_file().SerializeToString())


def message(name: str) -> Any:
    """Return the class of a message; names of nested messages are "Outer.Inner".

    Classes are built at run time, so type checkers do not know them.
    """
    return message_factory.GetMessageClass(POOL.FindMessageTypeByName(f"{PACKAGE}.{name}"))


ServerMetadataResponse = message("ServerMetadataResponse")
ModelReadyResponse = message("ModelReadyResponse")
ModelMetadataResponse = message("ModelMetadataResponse")
ModelInferRequest = message("ModelInferRequest")
ModelInferResponse = message("ModelInferResponse")
InferParameter = message("InferParameter")
InferTensorContents = message("InferTensorContents")

_REQUESTS = {method: message(f"{method}Request") for method in METHODS}


def parse_request(method: str, request: bytes) -> Any:
    """Parse the request of a method.

    Raises
    ------
    InvalidRequestError
        The bytes are not such a request.
    """
    try:
        return _REQUESTS[method].FromString(request)
    except (DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequestError(
            f"{len(request)} bytes are not a serialized {PACKAGE}.{method}Request; use stubs of "
            "the Open Inference Protocol"
        ) from error
