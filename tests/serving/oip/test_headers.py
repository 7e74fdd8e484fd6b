"""A request that begins as another did is checked and answered as if that had never been."""

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


def fresh(served: ServedModels) -> ServedModels:
    """The same models, of which nothing was asked."""
    return ServedModels(served.release_id, served.schema_hash, served.models)


def said(request: bytes, served: ServedModels) -> bytes | str:
    try:
        return infer.run(infer.check_serialized(request, served))
    except PresageError as error:
        return str(error)


def serialized(name: str = "memory", rows: int = 1, scale: float = 1.0, **fields) -> bytes:
    request = raw_request(name, {"features": scale * features(rows)}, **fields)
    return bytes(request.SerializeToString())


def never(*_args):
    raise AssertionError(NOT_PARSED)


def test_the_second_request_that_begins_so_is_not_parsed(served, monkeypatch):
    served = fresh(served)
    said(serialized(), served)
    expected = said(serialized(scale=2), fresh(served))
    monkeypatch.setattr(infer, "parse_request", never)
    assert said(serialized(scale=2), served) == expected
    with pytest.raises(AssertionError, match=NOT_PARSED):
        said(serialized(rows=2), served)


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
def test_answers_and_errors_are_those_of_a_server_that_was_asked_nothing_before(served, asked):
    asked_before = fresh(served)
    for request in asked:
        assert said(request, asked_before) == said(request, fresh(served))


@given(garbled=st.binary(max_size=60), at=st.integers(0, 100))
def test_what_differs_anywhere_before_the_contents_is_read(served, garbled, at):
    known = fresh(served)
    right = serialized()
    said(right, known)
    request = right[:at] + garbled + right[at + len(garbled) :]
    assert said(request, known) == said(request, fresh(served))


def test_values_are_looked_at_each_time(never_run):
    served = fresh(never_run)
    served.headers.store(*_kept(serialized(), served))
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
            serialized(parameters={"x": {"string_param": "x" * headers._MAX_BYTES}}), id="long"
        ),
    ],
)
def test_these_headers_are_not_kept(served, request_):
    served = fresh(served)
    answer = said(request_, served)
    assert isinstance(answer, bytes)
    assert served.headers.find(request_) is None


def test_few_headers_are_kept(served):
    served = fresh(served)
    for rows in range(1, headers._MAX_HEADERS + 2):
        said(serialized(rows=rows), served)
    found = [
        served.headers.find(serialized(rows=rows)) for rows in range(1, headers._MAX_HEADERS + 2)
    ]
    assert 0 < sum(header is not None for header in found) <= headers._MAX_HEADERS


def _kept(request: bytes, served: ServedModels):
    raw = features().tobytes()
    return request, raw, served.models["memory"], "features", (1, WIDTH)
