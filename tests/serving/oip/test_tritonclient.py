"""Unmodified tritonclient against the server, in a process with both sets of descriptors."""

import grpc
import numpy as np
import pytest
from google.protobuf import descriptor_pool
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from presage.serving.oip.messages import METHODS, SERVICE, SERVICE_NAME
from tests.serving.oip.requests import WIDTH, colocations, features

triton = pytest.importorskip("tritonclient.grpc")
utils = pytest.importorskip("tritonclient.utils")


@pytest.fixture(scope="module")
def target(server):
    """Address of the complete server with all its services."""
    return server.target


@pytest.fixture(scope="module")
def client(target):
    with triton.InferenceServerClient(target) as connected:
        yield connected


def inputs(arrays):
    made = []
    for name, array in arrays.items():
        made.append(triton.InferInput(name, list(array.shape), "FP32"))
        made[-1].set_data_from_numpy(array)
    return made


def status_of(call):
    with pytest.raises(utils.InferenceServerException) as caught:
        call()
    return caught.value.status(), caught.value.message()


def test_the_server_is_live_and_ready(client, release):
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("memory")
    assert client.is_model_ready("memory", release.release_id)
    assert not client.is_model_ready("memory", "1")
    assert not client.is_model_ready("runtime")


def test_the_server_metadata_is_read(client, release):
    assert client.get_server_metadata().name == "presage"
    found = client.get_model_metadata("interference", as_json=True)

    assert found == {
        "name": "interference",
        "versions": [release.release_id],
        "platform": "onnxruntime_onnx",
        "inputs": [
            {"name": "members", "datatype": "FP32", "shape": ["-1", "-1", "20"]},
            {"name": "mask", "datatype": "FP32", "shape": ["-1", "-1"]},
        ],
        "outputs": [{"name": "quantiles", "datatype": "FP32", "shape": ["-1", "-1", "5"]}],
    }


@pytest.mark.parametrize("rows", [1, 300])
@pytest.mark.parametrize("name", ["compute_utilization", "memory", "step_time"])
def test_rows_get_the_models_quantiles(client, served, release, name, rows):
    asked = features(rows)

    result = client.infer(name, inputs({"features": asked}), request_id="call 7")

    expected = served.models[name].onnx.quantiles({"features": asked})
    assert result.as_numpy("quantiles").tolist() == expected.tolist()
    response = result.get_response()
    assert (response.id, response.model_version) == ("call 7", release.release_id)
    assert response.parameters["levels"].string_param == "0.05,0.1,0.5,0.9,0.95"


def test_co_locations_get_the_models_quantiles(client, served):
    asked = colocations(3, 1, 2)
    present = asked["mask"] == 1

    outputs = [triton.InferRequestedOutput("quantiles")]
    result = client.infer("interference", inputs(asked), outputs=outputs)

    expected = served.models["interference"].onnx.quantiles(asked, present)
    assert result.as_numpy("quantiles")[present].tolist() == expected.tolist()


def test_an_invalid_request_has_its_status(client):
    narrow = inputs({"features": np.ones((1, WIDTH - 1), np.float32)})
    right = inputs({"features": features()})

    status, text = status_of(lambda: client.infer("memory", narrow))
    assert (status, text) == (
        "StatusCode.INVALID_ARGUMENT",
        f"features: shape is [1, {WIDTH - 1}], must be [rows, {WIDTH}] with at least 1 of each",
    )
    status, text = status_of(lambda: client.infer("runtime", right))
    assert status == "StatusCode.NOT_FOUND"
    status, text = status_of(lambda: client.infer("memory", right, model_version="1"))
    assert status == "StatusCode.NOT_FOUND"
    classes = [triton.InferRequestedOutput("quantiles", class_count=2)]
    status, text = status_of(lambda: client.infer("memory", right, outputs=classes))
    assert text == "quantiles: parameter classification is not supported; omit it"


def test_reflection_shows_the_service(target):
    with grpc.insecure_channel(target) as channel:
        pool = descriptor_pool.DescriptorPool(ProtoReflectionDescriptorDatabase(channel))
        found = pool.FindServiceByName(SERVICE_NAME)

    assert found.name == SERVICE
    assert set(found.methods_by_name) == set(METHODS)
    assert found.methods_by_name["ModelInfer"].input_type.fields_by_name["outputs"].number == 6
