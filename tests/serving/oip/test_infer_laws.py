"""Properties of ModelInfer: raw and typed contents agree with the model; no request crashes."""

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from presage.errors import InvalidTensorError, PresageError, UnknownModelError
from presage.features.columns.schema import FEATURE_SETS
from presage.serving.oip.messages import ModelInferRequest, ModelInferResponse
from presage.serving.oip.values import MAX_VALUE
from tests.serving.oip.requests import (
    MEMBER_WIDTH,
    WIDTH,
    answered,
    colocations,
    features,
    infer,
    raw_request,
    tensor,
    typed_request,
)

MAY_BE_NEGATIVE = [column.log_offset is None for column in FEATURE_SETS["full"]]
amounts = st.floats(0, float(MAX_VALUE), width=32)
matrices = st.integers(1, 4).flatmap(
    lambda rows: st.builds(
        lambda matrix, negative: np.where(negative & MAY_BE_NEGATIVE, -matrix, matrix),
        arrays(np.float32, (rows, WIDTH), elements=amounts),
        arrays(np.bool_, (rows, WIDTH)),
    )
)
SECRET = "s3cret"  # what no error may repeat


@pytest.mark.parametrize("name", ["compute_utilization", "memory", "step_time"])
@given(matrix=matrices)
def test_raw_and_typed_features_get_the_models_quantiles(served, name, matrix):
    expected = served.models[name].onnx.quantiles({"features": matrix})

    for make in (raw_request, typed_request):
        response = infer(make(name, {"features": matrix}), served)
        assert (answered(response) == expected).all()


@given(data=st.data(), sizes=st.lists(st.integers(1, 5), min_size=1, max_size=4))
def test_raw_and_typed_members_get_the_models_quantiles(served, data, sizes):
    asked = colocations(*sizes)
    asked["members"] = data.draw(
        arrays(np.float32, (*asked["mask"].shape, MEMBER_WIDTH), elements=amounts)
    )
    present = asked["mask"] == 1
    expected = served.models["interference"].onnx.quantiles(asked, present)

    for make in (raw_request, typed_request):
        quantiles = answered(infer(make("interference", asked), served))
        assert (quantiles[present] == expected).all()
        assert (quantiles[~present] == 1).all()


def response_or_error(content: bytes, served) -> None:
    """Return the response or the expected error; any other error fails the test."""
    try:
        request = ModelInferRequest.FromString(content)
    except DecodeError:
        return  # gRPC's own business
    try:
        response = infer(request, served)
    except PresageError as error:
        assert isinstance(error, (InvalidTensorError, UnknownModelError))
        assert len(str(error)) < 500
        assert SECRET not in str(error)
        return
    assert isinstance(response, ModelInferResponse)
    assert np.isfinite(answered(response)).all()


@given(content=st.binary(max_size=200))
def test_any_bytes_get_a_response_or_an_error(served, content):
    response_or_error(content, served)


RIGHT = [
    make(model, arrays_by_name, id="7").SerializeToString()
    for make in (raw_request, typed_request)
    for model, arrays_by_name in (
        ("memory", {"features": features()}),
        ("compute_utilization", {"features": features(2)}),
        ("step_time", {"features": features(3)}),
    )
]
edits = st.tuples(st.floats(0, 1), st.integers(0, 8), st.binary(max_size=8))


@given(content=st.sampled_from(RIGHT), changes=st.lists(edits, max_size=4), places=st.booleans())
def test_a_valid_request_with_changed_bytes_gets_a_response_or_an_error(
    served, content, changes, places
):
    for where, length, new in changes:
        # Most of a request is numbers; half of the changes go where the structure is.
        start = int(where * (len(content) if places else min(len(content), 60)))
        content = content[:start] + new + content[start + length :]
    response_or_error(content, served)


sizes = st.sampled_from([-(2**63), -1, 0, 1, 2, MEMBER_WIDTH, WIDTH, 4097, 2**62, 2**63 - 1])
floats = st.lists(st.floats(width=32), max_size=3) | st.just([1.0] * WIDTH) | st.just([1.0] * 40)
contents = st.fixed_dictionaries(
    {},
    optional={
        "fp32_contents": floats,
        "fp64_contents": st.lists(st.floats(), max_size=1),
        "bool_contents": st.lists(st.booleans(), max_size=1),
    },
)
shapes = st.just([1, WIDTH]) | st.just([1, 2, MEMBER_WIDTH]) | st.just([1, 2])
tensors = st.builds(
    lambda name, shape, datatype, contents: tensor(name, shape, datatype, **contents),
    st.sampled_from(["features", "members", "mask", SECRET]),
    shapes | st.lists(sizes, max_size=4),
    st.sampled_from(["FP32", "FP32", "FP64", SECRET]),
    contents,
)
raws = (
    floats.map(lambda values: np.array(values, np.float32).tobytes())
    | st.binary(max_size=9)
    | st.just(features().tobytes())
)
requests = st.builds(
    ModelInferRequest,
    model_name=st.sampled_from(["memory", "interference", "", SECRET]),
    model_version=st.sampled_from(["", "", SECRET]),
    id=st.text(st.characters(exclude_categories=["Cs"]), max_size=3),
    inputs=st.lists(tensors, max_size=3),
    raw_input_contents=st.lists(raws, max_size=3),
)


@given(request=requests)
def test_any_request_gets_a_response_or_an_error(served, request):
    response_or_error(request.SerializeToString(), served)
