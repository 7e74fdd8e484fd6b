"""Invalid requests are rejected before a model runs, with their path and without their text."""

import re
from typing import Any

import numpy as np
import pytest

from presage.errors import InvalidTensorError, UnknownModelError
from presage.features.colocation_member import MEMBER_COLUMNS
from presage.serving.oip.messages import message
from tests.serving.oip.requests import (
    COLUMNS,
    MEMBER_WIDTH,
    WIDTH,
    colocations,
    features,
    infer,
    raw_request,
    request,
    tensor,
    typed_request,
)

# Words and a value of the caller's, which no error may repeat.
SECRET = "s3cret"
SECRET_VALUE = -7654.5
NO_DATATYPE = "unknown to the protocol"
ROW = features()[0].tolist()
ROW_BYTES = features().tobytes()


def refused(asked, served, error=InvalidTensorError) -> str:
    with pytest.raises(error) as caught:
        infer(asked, served)
    text = str(caught.value)
    assert SECRET not in text
    assert "7654" not in text
    assert "\n" not in text
    return text


def shaped(*shape):
    """Return a raw request of that shape whose bytes fill one row."""
    return request("memory", [tensor("features", shape)], [ROW_BYTES])


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (shaped(1, WIDTH - 1), rf"shape is \[1, {WIDTH - 1}\], must be \[rows, {WIDTH}\]"),
        (shaped(WIDTH), rf"shape is \[{WIDTH}\], must be \[rows, {WIDTH}\]"),
        (shaped(1, 1, WIDTH), rf"shape is \[1, 1, {WIDTH}\], must be"),
        (shaped(), r"shape is \[\], must be"),
        (shaped(0, WIDTH), rf"shape is \[0, {WIDTH}\], must be .* at least 1"),
        (shaped(-1, WIDTH), rf"shape is \[-1, {WIDTH}\], must be .* at least 1"),
        (shaped(-1, -WIDTH), rf"shape is \[-1, -{WIDTH}\], must be"),
        (shaped(2**62, 4), rf"shape is \[{2**62}, 4\], must be"),
        (shaped(2**62, WIDTH), rf"{2**62} rows, the limit is 4096; split the request"),
        (shaped(4097, WIDTH), r"4097 rows, the limit is 4096"),
        (shaped(*[1] * 1000), r"shape is one of 1000 axes, must be"),
        (shaped(2, WIDTH), rf"{4 * WIDTH} bytes of raw contents, must be {8 * WIDTH}: 4 for each"),
    ],
)
def test_a_wrong_shape_is_refused(never_run, asked, said):
    assert re.fullmatch(rf"features: {said}.*", refused(asked, never_run))


@pytest.mark.parametrize("n_bytes", [0, 1, 4 * WIDTH - 1, 4 * WIDTH + 1, 8 * WIDTH])
def test_raw_contents_of_another_size_are_refused(never_run, n_bytes):
    asked = request("memory", [tensor("features", (1, WIDTH))], [bytes(n_bytes)])

    assert f"features: {n_bytes} bytes of raw contents, must be 708" in refused(asked, never_run)


@pytest.mark.parametrize(
    ("datatype", "said"),
    [("FP64", "FP64"), ("INT32", "INT32"), (SECRET, NO_DATATYPE), ("", NO_DATATYPE)],
)
def test_another_datatype_is_refused(never_run, datatype, said):
    asked = request("memory", [tensor("features", (1, WIDTH), datatype)], [ROW_BYTES])

    text = refused(asked, never_run)
    assert text.startswith(f"features: datatype is {said}, must be FP32")


@pytest.mark.parametrize("field", ["fp64_contents", "int64_contents", "bytes_contents"])
def test_contents_in_the_wrong_typed_field_are_refused(never_run, field):
    values = {"fp64_contents": SECRET_VALUE, "int64_contents": -7654}
    contents: dict[str, Any] = {field: [values.get(field, SECRET.encode())] * WIDTH}
    asked = request("memory", [tensor("features", (1, WIDTH), **contents)])
    both = request("memory", [tensor("features", (1, WIDTH), fp32_contents=ROW, **contents)])

    assert f"features: has {field}, must have 177 values in fp32_cont" in refused(asked, never_run)
    assert "must have 177 values in fp32_contents alone" in refused(both, never_run)


@pytest.mark.parametrize("count", [1, WIDTH - 1, WIDTH + 1])
def test_too_few_or_too_many_typed_values_are_refused(never_run, count):
    asked = request("memory", [tensor("features", (1, WIDTH), fp32_contents=[1.0] * count)])

    assert f"{count} values in fp32_contents, must be {WIDTH}" in refused(asked, never_run)


def test_a_request_without_contents_is_refused(never_run):
    bare = request("memory", [tensor("features", (1, WIDTH))])
    empty = request("memory", [tensor("features", (1, WIDTH), fp32_contents=[])])

    for asked in (bare, empty):
        assert "features: has neither raw nor typed contents" in refused(asked, never_run)


def test_raw_and_typed_contents_are_not_mixed(never_run):
    asked = typed_request("interference", colocations(2))
    asked.raw_input_contents.append(b"")

    assert refused(asked, never_run).startswith(
        "members: has contents as well as raw_input_contents"
    )


@pytest.mark.parametrize("count", [1, 3])
def test_the_number_of_raw_entries_equals_that_of_inputs(never_run, count):
    asked = raw_request("interference", colocations(2))
    del asked.raw_input_contents[1:]
    asked.raw_input_contents.extend([b""] * (count - 1))

    text = refused(asked, never_run)
    assert f"raw_input_contents has {count} entries, must have 2" in text
    assert text.endswith(
        "interference takes members FP32 [co-locations, members, 20] "
        "and mask FP32 [co-locations, members]"
    )


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ([], r"features: is missing among the 0 inputs; memory takes features FP32 \[rows, 177\]"),
        ([SECRET], r"inputs\[0\]: unknown name; memory takes features FP32 \[rows, 177\]"),
        ([""], r"inputs\[0\]: unknown name; .*"),
        (["features", SECRET], r"inputs\[1\]: unknown name; .*"),
        (["features", "features"], r"inputs\[1\]: features occurs twice; give it once"),
    ],
)
def test_the_inputs_are_those_of_the_model_each_once(never_run, names, said):
    inputs = [tensor(name, (1, WIDTH)) for name in names]

    assert re.fullmatch(said, refused(request("memory", inputs, [ROW_BYTES]), never_run))


@pytest.mark.parametrize("missing", ["members", "mask"])
def test_the_error_names_the_missing_input(never_run, missing):
    asked = colocations(2)
    del asked[missing]

    text = refused(raw_request("interference", asked), never_run)

    assert text.startswith(f"{missing}: is missing among the 1 inputs; interference takes members")


@pytest.mark.parametrize("name", ["", "Memory", "runtime", SECRET])
def test_the_error_of_an_unknown_model_lists_the_served_models(never_run, name):
    asked = raw_request(name, {"features": features()})

    assert refused(asked, never_run, UnknownModelError) == (
        "unknown model; the models are compute_utilization, memory, step_time, interference"
    )


@pytest.mark.parametrize("version", ["1", "-1", SECRET])
def test_the_error_of_an_unknown_version_names_the_served_version(never_run, release, version):
    asked = raw_request("memory", {"features": features()}, model_version=version)

    text = refused(asked, never_run, UnknownModelError)
    assert text.startswith(f"unknown version of memory; request {release.release_id}")


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ([SECRET], "outputs[0]: unknown name; memory has one: quantiles"),
        (["quantiles", SECRET], "outputs: 2 are requested, but memory has only one: quantiles"),
    ],
)
def test_an_unknown_output_is_refused(never_run, names, said):
    outputs = [message("ModelInferRequest.InferRequestedOutputTensor")(name=n) for n in names]
    asked = raw_request("memory", {"features": features()}, outputs=outputs)

    assert refused(asked, never_run) == said


def test_extensions_that_would_change_an_answer_are_refused(never_run):
    shared = raw_request("memory", {"features": features()})
    shared.inputs[0].parameters["shared_memory_region"].string_param = SECRET
    classes = raw_request("memory", {"features": features()})
    classes.outputs.add(name="quantiles").parameters["classification"].int64_param = 3

    assert "features: parameter shared_memory_region is not" in refused(shared, never_run)
    assert "quantiles: parameter classification is not supported" in refused(classes, never_run)


@pytest.mark.parametrize("make", [raw_request, typed_request])
@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("flops", np.nan, "'flops' of row 2 is not finite, must be in [0, 1e+30]"),
        ("flops", np.inf, "'flops' of row 2 is not finite, must be in [0, 1e+30]"),
        ("flops", SECRET_VALUE, "'flops' of row 2 is out of range, must be in [0, 1e+30]"),
        ("flops", np.float32(-1e-45), "'flops' of row 2 is out of range"),
        ("flops", 2e30, "'flops' of row 2 is out of range"),
        (COLUMNS[0], np.nan, f"{COLUMNS[0]!r} of row 2 is not finite"),
        (COLUMNS[-1], np.nan, f"{COLUMNS[-1]!r} of row 2 is not finite"),
        ("log_compute_over_memory", -np.inf, "of row 2 is not finite, must be in [-1e+30, 1e+30]"),
    ],
)
def test_the_error_of_an_invalid_value_names_column_and_row(never_run, make, column, value, said):
    asked = features(4)
    asked[2, COLUMNS.index(column)] = value

    text = refused(make("memory", {"features": asked}), never_run)

    assert text.startswith("features: ")
    assert said in text


def test_a_signalling_nan_is_rejected_as_any_nan(never_run):
    asked = features()
    asked.view(np.uint32)[0, 3] = 0x7F800001

    assert "is not finite" in refused(raw_request("memory", {"features": asked}), never_run)


@pytest.mark.parametrize("make", [raw_request, typed_request])
@pytest.mark.parametrize("member", [0, 2])  # one that is there, and padding
def test_the_error_of_a_members_value_names_co_location_member_and_column(never_run, make, member):
    asked = colocations(3, 2)
    asked["members"][1, member, 4] = np.nan

    text = refused(make("interference", asked), never_run)

    assert f"members: {MEMBER_COLUMNS[4]!r} of member {member} of co-location 1" in text
    assert "is not finite, must be in [-1e+30, 1e+30], in padding too" in text


@pytest.mark.parametrize(
    ("mask", "said"),
    [
        ([1, 0.5, 0], "mask: co-location 1 has other values than 0 and 1"),
        ([1, SECRET_VALUE, 0], "mask: co-location 1 has other values than 0 and 1"),
        ([1, np.nan, 0], "mask: co-location 1 has other values than 0 and 1"),
        ([0, 0, 0], "mask: co-location 1 does not begin with its members; give at least one"),
        ([0, 1, 1], "mask: co-location 1 does not begin with its members"),
        ([1, 0, 1], "mask: co-location 1 does not begin with its members"),
    ],
)
def test_a_mask_must_be_ones_followed_by_zeros(never_run, mask, said):
    asked = colocations(3, 2)
    asked["mask"][1] = mask

    assert said in refused(raw_request("interference", asked), never_run)


def test_a_mask_must_have_the_members_shape(never_run):
    asked = colocations(3, 2)
    asked["mask"] = asked["mask"].T.copy()

    text = refused(raw_request("interference", asked), never_run)

    assert text == "mask: shape is [3, 2], must be [2, 3], the first two axes of members"


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        ((2**62, 4), f"{2**64} co-locations x members, the limit is 4096"),
        ((4097, 1), "4097 co-locations x members, the limit is 4096"),
        ((65, 64), "4160 co-locations x members, the limit is 4096"),
        ((1, 65), "65 members per co-location, the limit is 64"),
        ((2, 0), "shape is [2, 0, 20], must be [co-locations, members, 20] with at least 1"),
    ],
)
def test_the_numbers_of_co_locations_and_members_are_limited(never_run, shape, said):
    inputs = [tensor("members", (*shape, MEMBER_WIDTH)), tensor("mask", shape)]

    text = refused(request("interference", inputs, [b"", b""]), never_run)

    assert text.startswith(f"members: {said}")
