"""Invalid requests over the wire: each has a status, names the expectation and runs no model."""

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from presage.serving.oip.messages import SERVICE_NAME, message
from presage.serving.predictor.onnx_model import OnnxModel
from tests.serving.oip.requests import (
    COLUMNS,
    WIDTH,
    features,
    raw_request,
    request,
    tensor,
    typed_request,
)

Code = grpc.StatusCode
GOOD = features()
RAW = GOOD.tobytes()


@pytest.fixture(scope="module")
def infer(channel):
    return channel.unary_unary(
        f"/{SERVICE_NAME}/ModelInfer",
        request_serializer=lambda asked: asked.SerializeToString(),
        response_deserializer=message("ModelInferResponse").FromString,
    )


@pytest.fixture
def runs(monkeypatch):
    """Models that have run since; the server is in this process."""
    models = []
    run = OnnxModel.run

    def counted(self, *inputs):
        models.append(self)
        return run(self, *inputs)

    monkeypatch.setattr(OnnxModel, "run", counted)
    return models


def with_value(value):
    asked = features(3)
    asked[2, 5] = value
    return asked


def one_row(shape, datatype="FP32", name="features", raw=RAW, **fields):
    return request("memory", [tensor(name, shape, datatype)], [raw], **fields)


SECRET = "my-secret-model"
WRONG = {
    "width": (one_row([1, WIDTH - 1]), Code.INVALID_ARGUMENT, f"must be [rows, {WIDTH}]"),
    "rank": (one_row([WIDTH]), Code.INVALID_ARGUMENT, f"must be [rows, {WIDTH}]"),
    "byte size": (one_row([2, WIDTH]), Code.INVALID_ARGUMENT, f"must be {2 * WIDTH * 4}"),
    "FP64": (one_row([1, WIDTH], "FP64"), Code.INVALID_ARGUMENT, "must be FP32"),
    "INT32": (one_row([1, WIDTH], "INT32"), Code.INVALID_ARGUMENT, "must be FP32"),
    "bogus type": (one_row([1, WIDTH], SECRET), Code.INVALID_ARGUMENT, "must be FP32"),
    "wrong input name": (one_row([1, WIDTH], name=SECRET), Code.INVALID_ARGUMENT, "takes features"),
    "no input": (request("memory", []), Code.INVALID_ARGUMENT, "is missing among the 0 inputs"),
    "unknown model": (raw_request(SECRET, {"features": GOOD}), Code.NOT_FOUND, "the models are"),
    "unknown version": (
        one_row([1, WIDTH], model_version=SECRET), Code.NOT_FOUND, "unknown version of memory",
    ),
    "unknown output": (
        one_row([1, WIDTH], outputs=[{"name": SECRET}]), Code.INVALID_ARGUMENT,
        "has one: quantiles",
    ),
    "negative shape": (one_row([-1, WIDTH]), Code.INVALID_ARGUMENT, "with at least 1 of each"),
    "overflowing shape": (one_row([2**62, WIDTH]), Code.INVALID_ARGUMENT, "the limit is 4096"),
    "too many rows": (one_row([4097, WIDTH]), Code.INVALID_ARGUMENT, "the limit is 4096"),
    "NaN": (
        raw_request("memory", {"features": with_value(np.nan)}), Code.INVALID_ARGUMENT,
        f"{COLUMNS[5]!r} of row 2 is not finite",
    ),
    "infinity": (
        typed_request("memory", {"features": with_value(np.inf)}), Code.INVALID_ARGUMENT,
        f"{COLUMNS[5]!r} of row 2 is not finite",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_an_invalid_request_has_its_status_and_never_runs(infer, runs, what):
    asked, code, said = WRONG[what]

    with pytest.raises(grpc.RpcError) as caught:
        infer(asked, timeout=5)

    assert caught.value.code() is code
    assert said in str(caught.value.details())
    assert SECRET not in str(caught.value.details())
    assert not runs


def test_a_valid_request_runs_once(infer, runs):
    infer(one_row([1, WIDTH]), timeout=5)
    assert len(runs) == 1


def test_a_message_beyond_the_largest_request_is_rejected_unread(infer):
    with pytest.raises(grpc.RpcError) as caught:
        infer(one_row([6000, WIDTH], raw=bytes(6000 * WIDTH * 4)), timeout=10)
    assert caught.value.code() is Code.RESOURCE_EXHAUSTED


def test_malformed_bytes_are_an_invalid_argument(channel):
    call = channel.unary_unary(f"/{SERVICE_NAME}/ModelInfer")
    with pytest.raises(grpc.RpcError) as caught:
        call(b"\xff" * 50, timeout=5)
    assert caught.value.code() is Code.INVALID_ARGUMENT
    assert "not a serialized inference.ModelInferRequest" in str(caught.value.details())


def test_each_model_has_its_own_health_status(channel):
    health = health_pb2_grpc.HealthStub(channel)
    for name in ("", SERVICE_NAME, "compute_utilization", "memory", "step_time", "interference"):
        answer = health.Check(health_pb2.HealthCheckRequest(service=name), timeout=5)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        watch = health.Watch(health_pb2.HealthCheckRequest(service=name), timeout=5)
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
        watch.cancel()
