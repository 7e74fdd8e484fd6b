"""Responses to valid inference requests."""

import numpy as np
import pytest

from presage.serving.codec.request_limits import MAX_MEMBERS, MAX_ROWS
from presage.serving.oip.infer import check
from presage.serving.oip.messages import message
from tests.serving.oip.requests import (
    COLUMNS,
    WIDTH,
    answered,
    colocations,
    features,
    infer,
    raw_request,
    request,
    tensor,
    typed_request,
)


def outputs(*names):
    return [message("ModelInferRequest.InferRequestedOutputTensor")(name=n) for n in names]


@pytest.mark.parametrize("make", [raw_request, typed_request])
@pytest.mark.parametrize("rows", [1, 3])
def test_each_row_has_its_quantiles(served, constants, make, rows):
    asked = features(rows)

    response = infer(make("memory", {"features": asked}), served)

    prior_bytes = asked[:, [COLUMNS.index("memory_prior_bytes")]]
    assert answered(response).tolist() == (prior_bytes * np.float32(constants.memory)).tolist()


@pytest.mark.parametrize("make", [raw_request, typed_request])
@pytest.mark.parametrize("order", [("members", "mask"), ("mask", "members")])
def test_each_member_has_its_slowdowns_and_padding_has_none(served, constants, make, order):
    asked = colocations(3, 2)

    response = infer(make("interference", {name: asked[name] for name in order}), served)

    slowdowns = answered(response)
    assert slowdowns.shape == (2, 3, len(constants.levels))
    assert (slowdowns[0] > 1).all()
    assert (slowdowns[1, :2] > 1).all()
    assert (slowdowns[1, 2] == 1).all()


def test_raw_requests_get_raw_and_typed_requests_typed_responses(served):
    raw = infer(raw_request("memory", {"features": features()}), served)
    typed = infer(typed_request("memory", {"features": features()}), served)

    assert len(raw.raw_output_contents) == 1
    assert not raw.outputs[0].HasField("contents")
    assert len(typed.raw_output_contents) == 0
    assert len(typed.outputs[0].contents.fp32_contents) == 5


def test_a_response_names_model_release_request_unit_and_levels(served, release):
    asked = raw_request("step_time", {"features": features()}, id="call 7")

    response = infer(asked, served)

    assert response.model_name == "step_time"
    assert response.model_version == release.release_id
    assert response.id == "call 7"
    assert response.parameters["unit"].string_param == "seconds"
    assert response.parameters["levels"].string_param == "0.05,0.1,0.5,0.9,0.95"


def test_a_response_holds_nothing_of_the_previous_one(served):
    infer(raw_request("memory", {"features": features(3)}, id="first"), served)

    second = infer(typed_request("memory", {"features": features()}), served)

    assert second.id == ""
    assert list(second.outputs[0].shape) == [1, 5]
    assert len(second.raw_output_contents) == 0


def test_a_request_may_name_the_release_id_and_the_output(served, release):
    asked = raw_request(
        "memory",
        {"features": features()},
        model_version=release.release_id,
        outputs=outputs("quantiles"),
    )

    assert answered(infer(asked, served)).shape == (1, 5)


def test_parameters_without_effect_are_ignored(served):
    asked = raw_request("memory", {"features": features()})
    asked.parameters["priority"].uint64_param = 1
    asked.inputs[0].parameters["content_type"].string_param = "np"

    assert answered(infer(asked, served)).shape == (1, 5)


def test_raw_contents_are_not_copied_again(served):
    inference = check(raw_request("memory", {"features": features(2)}), served)

    assert not inference.inputs["features"].flags.owndata
    assert not inference.inputs["features"].flags.writeable


def test_fields_of_a_later_protocol_do_not_disturb_typed_contents(served):
    asked = tensor("features", (1, WIDTH), fp32_contents=features()[0].tolist())
    asked.contents.MergeFromString(b"\xa2\x06\x05later")  # field 100

    response = infer(request("memory", [asked]), served)

    again = infer(raw_request("memory", {"features": features()}), served)
    assert (answered(response) == answered(again)).all()


@pytest.mark.parametrize("make", [raw_request, typed_request])
def test_the_largest_requests_succeed(served, make):
    rows = infer(make("memory", {"features": features(MAX_ROWS)}), served)
    full = colocations(*[MAX_MEMBERS] * (MAX_ROWS // MAX_MEMBERS))
    together = check(make("interference", full), served)

    assert answered(rows).shape == (MAX_ROWS, 5)
    assert together.rows == MAX_ROWS


def test_values_at_the_ends_of_their_ranges_succeed(served):
    asked = features(2)
    asked[0], asked[1] = 0, 1e30
    asked[:, COLUMNS.index("log_compute_over_memory")] = -1e30, 1e30

    assert np.isfinite(answered(infer(raw_request("memory", {"features": asked}), served))).all()
