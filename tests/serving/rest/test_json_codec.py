"""JSON of messages: round trips, and errors that name the place without text of the request."""

from __future__ import annotations

import json
from typing import Any

import pytest
from google.protobuf import json_format
from hypothesis import given, settings
from hypothesis import strategies as st

from presage.errors import InvalidRequestError
from presage.serving.rest.json_codec import as_json, serialize_json
from presage.serving.rest.routes import ROUTES
from presage.serving.v1 import prediction_pb2 as pb
from tests.serving.server.any_message import SECRET, any_message
from tests.support.slow_tests import examples

REQUESTS = [route.descriptor.input_type for route in ROUTES]
RESPONSES = [route.descriptor.output_type for route in ROUTES]
PREDICT: Any = pb.PredictRequest.DESCRIPTOR


@given(st.sampled_from(REQUESTS).flatmap(any_message))
@settings(max_examples=examples(40), deadline=None)
def test_any_request_survives_the_round_trip(message: Any):
    body = json_format.MessageToJson(message).encode()

    content = serialize_json(body, message.DESCRIPTOR)

    # Of NaN, which differs from itself, only the kind survives.
    found = json_format.MessageToDict(type(message).FromString(content))
    assert found == json_format.MessageToDict(message)


@given(st.sampled_from(RESPONSES).flatmap(any_message))
@settings(max_examples=examples(40), deadline=None)
def test_any_response_is_strict_json_of_the_message(message: Any):
    text = as_json(message.SerializeToString(), message.DESCRIPTOR)

    json.loads(text, parse_constant=pytest.fail)
    parsed = json_format.Parse(text, type(message)())
    assert json_format.MessageToDict(parsed) == json_format.MessageToDict(message)


_scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.just(SECRET)
_names = st.sampled_from(
    ["jobs", "devices", "opStats", "batchSize", "dataSheet", "peakFlopsPerS", "levels", SECRET,
     "precisions", "features", "coverage", "[a.b]", "@type"]
)  # fmt: skip
_values = st.recursive(
    _scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_names, inner, max_size=4)
)


@given(_values, st.sampled_from(REQUESTS))
@settings(max_examples=examples(200), deadline=None)
def test_any_json_is_a_message_or_an_error_without_its_text(value: Any, kind: Any):
    try:
        serialize_json(json.dumps(value).encode(), kind)
    except InvalidRequestError as error:
        assert SECRET not in str(error)
        assert "\n" not in str(error)


@given(st.binary(max_size=60), st.sampled_from(REQUESTS))
@settings(max_examples=examples(300), deadline=None)
def test_any_bytes_are_a_message_or_an_error(body: bytes, kind: Any):
    try:
        serialize_json(body, kind)
    except InvalidRequestError as error:
        assert len(str(error)) < 1000


@pytest.mark.parametrize("body", [b"", b" \r\n\t"])
def test_an_empty_body_is_an_empty_message(body):
    assert serialize_json(body, PREDICT) == b""


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("[]", "the body is not a JSON object"),
        ("null", "the body is not a JSON object"),
        ("{", "the body is not JSON: Expecting property name"),
        ('{"jobs": [}', "the body is not JSON: Expecting value: line 1 column 11"),
        ("{} {}", "the body is not JSON: Extra data"),
        ('{"coverage": 1, "coverage": 2}', "an object in the body has two members of one name"),
        ('{"job": []}', "the body has an unknown field; its fields are jobs, devices, placements"),
        ('{"jobs": [{"batch": 1}]}', "jobs[0] has an unknown field; its fields are jobId, name"),
        ('{"jobs": [{"batchSize": 1.5}]}', "jobs[0].batchSize has a value that its type does not"),
        ('{"jobs": [{"batchSize": "x"}]}', "jobs.batchSize has a value that its type does not"),
        ('{"jobs": [{"batchSize": 9223372036854775808}]}', "jobs.batchSize has a value"),
        ('{"jobs": {}}', "jobs has a value that its type does not permit"),
        ('{"coverage": NaN}', "coverage is not a number of JSON"),
        ('{"coverage": 1e999}', "coverage is not a number of JSON"),
        ('{"devices": [{"dataSheet": {"peakFlopsPerS": {"a]b": "x"}}}]}', "devices.dataSheet.peak"),
        ('{"devices": [{"dataSheet": {"peakFlopsPerS": {"a b": "x"}}}]}',
         "devices[0].dataSheet.peakFlopsPerS[...] has a value"),
        ('{"jobs": [{"name": "\\ud800"}]}', "jobs[0].name has a value that its type does not"),
        ("[" * 100_000, "the body is not a JSON object"),
        ('{"jobs":' + "[" * 100_000, "the body is nested too deeply"),
        ('{"a":' * 100_000, "the body is nested too deeply"),
        ('{"coverage": ' + "9" * 5000 + "}", "the body is not JSON: Exceeds the limit"),
        (b'{"a": "\xff"}', "the body is not UTF-8 (byte 7)"),
        ("\ufeff{}", "the body is not a JSON object"),
    ],
)  # fmt: skip
def test_errors_name_the_place(body, reason):
    with pytest.raises(InvalidRequestError) as caught:
        serialize_json(body if isinstance(body, bytes) else body.encode(), PREDICT)

    assert str(caught.value).startswith(reason)


def test_infinite_numbers_are_strings_in_responses():
    content = pb.Forecast(median=1.0, high=float("inf"), low=float("nan")).SerializeToString()

    forecast: Any = pb.Forecast.DESCRIPTOR
    parsed = json.loads(as_json(content, forecast))

    assert (parsed["high"], parsed["low"]) == ("Infinity", "NaN")
