"""Cached request headers: a request with a known header gets the same response and errors."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from presage.errors import InvalidTensorError, PresageError
from presage.serving.oip import headers, infer
from presage.serving.oip.served import ServedModels
from tests.serving.oip.requests import (
    COLUMNS,
    WIDTH,
    colocations,
    features,
    raw_request,
    typed_request,
)

NAMES = ("compute_utilization", "memory", "step_time")
NOT_PARSED = "parsed although it begins as another did"


def fresh_models(served: ServedModels) -> ServedModels:
    """Return the same models with empty caches."""
    return ServedModels(served.release_id, served.schema_hash, served.models)


def outcome(request: bytes, served: ServedModels) -> bytes | str:
    try:
        return infer.run(infer.check_serialized(request, served))
    except PresageError as error:
        return str(error)


def serialized(name: str = "memory", rows: int = 1, scale: float = 1.0, **fields) -> bytes:
    request = raw_request(name, {"features": scale * features(rows)}, **fields)
    return bytes(request.SerializeToString())


def never(*_args):
    raise AssertionError(NOT_PARSED)


def test_the_second_request_with_the_same_header_is_not_parsed(served, monkeypatch):
    served = fresh_models(served)
    outcome(serialized(), served)
    expected = outcome(serialized(scale=2), fresh_models(served))
    monkeypatch.setattr(infer, "parse_request", never)
    assert outcome(serialized(scale=2), served) == expected
    with pytest.raises(AssertionError, match=NOT_PARSED):
        outcome(serialized(rows=2), served)


@given(
    asked=st.lists(
        st.builds(
            serialized,
            st.sampled_from((*NAMES, "step_tima")),
            rows=st.integers(1, 2),
            scale=st.sampled_from((0.5, 1, -1, np.nan, np.inf)),
            id=st.sampled_from(("", "a", "b")),
            model_version=st.sampled_from(("", "0" * 12)),
        ),
        max_size=12,
    )
)
def test_responses_and_errors_equal_those_of_a_server_with_empty_caches(served, asked):
    asked_before = fresh_models(served)
    for request in asked:
        assert outcome(request, asked_before) == outcome(request, fresh_models(served))


@given(garbled=st.binary(max_size=60), at=st.integers(0, 100))
def test_a_difference_before_the_contents_is_detected(served, garbled, at):
    known = fresh_models(served)
    right = serialized()
    outcome(right, known)
    request = right[:at] + garbled + right[at + len(garbled) :]
    assert outcome(request, known) == outcome(request, fresh_models(served))


def test_values_are_checked_each_time(never_run):
    served = fresh_models(never_run)
    served.headers.store(*_cached(serialized(), served))
    wrong = features()
    wrong[0, COLUMNS.index("flops")] = np.nan
    request = raw_request("memory", {"features": wrong}).SerializeToString()
    with pytest.raises(InvalidTensorError, match="'flops' of row 0 is not finite"):
        infer.check_serialized(request, served)


@pytest.mark.parametrize(
    "request_",
    [
        pytest.param(serialized(id="mine"), id="an id of its own"),
        pytest.param(
            typed_request("memory", {"features": features()}).SerializeToString(), id="typed"
        ),
        pytest.param(
            raw_request("interference", colocations(2)).SerializeToString(), id="two tensors"
        ),
        # Field 99, of two bytes; and one of as many bytes as the contents have.
        pytest.param(serialized() + b"\x9a\x06\x02ab", id="an unknown field comes last"),
        pytest.param(
            serialized() + b"\x9a\x06\xc4\x05" + features().tobytes(), id="which looks as they do"
        ),
        pytest.param(
            serialized(parameters={"x": {"string_param": "x" * headers.MAX_BYTES}}), id="long"
        ),
    ],
)
def test_these_headers_are_not_cached(served, request_):
    served = fresh_models(served)
    answer = outcome(request_, served)
    assert isinstance(answer, bytes)
    assert served.headers.find(request_) is None


def test_the_number_of_cached_headers_is_bounded(served):
    served = fresh_models(served)
    for rows in range(1, headers.MAX_HEADERS + 2):
        outcome(serialized(rows=rows), served)
    found = [
        served.headers.find(serialized(rows=rows)) for rows in range(1, headers.MAX_HEADERS + 2)
    ]
    assert 0 < sum(header is not None for header in found) <= headers.MAX_HEADERS


def _cached(request: bytes, served: ServedModels):
    raw = features().tobytes()
    return request, raw, served.models["memory"], "features", (1, WIDTH)
