"""Encoded responses parse to the messages that protobuf builds from the same numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from presage.features.forecast import DEVICE, Correction
from presage.features.quantities.quantity_registry import job_quantities
from presage.serving.codec import encode, wire_values
from presage.serving.predictor.corrections import Corrections
from presage.serving.predictor.prediction_backend import JobForecast
from presage.serving.predictor.quantiles import (
    ColocationQuantiles,
    Quantiles,
    SelectedQuantiles,
)
from presage.serving.v1 import prediction_pb2 as pb
from tests.support.slow_tests import examples

JOB_UNITS = {name: one.unit for name, one in job_quantities().items() if one.in_proto}
MOST_LEVELS = 16  # that a request may ask for
ODD = [0.0, -0.0, 1.0, -1.5, float("nan"), float("inf"), float("-inf"), 5e-324, 1.7e308, 7e300]
NUMBERS = st.sampled_from(ODD) | st.floats(width=64)
TEXTS = st.sampled_from(["", "0123456789ab", "\u00e4" * 200])


@dataclass
class Answered:
    """Random content of a response."""

    numbers: list[Quantiles]
    selected: SelectedQuantiles
    release_id: str
    errors: dict[int, pb.Error]
    rows: int


def quantiles(draw: Any, rows: int, levels: int) -> Quantiles:
    # Whatever way they lie in memory: a model's output, a column of it, a transposed one.
    values = draw(npst.arrays(np.float64, (levels, rows), elements=NUMBERS)).T
    if draw(st.booleans()):
        values = np.ascontiguousarray(values)
    ratio = draw(st.just(0.0) | npst.arrays(np.float64, rows, elements=NUMBERS))
    return Quantiles(values, draw(npst.arrays(np.bool_, rows)), ratio)


@st.composite
def answers(draw: Any, quantities: int, most_levels: int = 5) -> Answered:
    known = draw(st.integers(3, 9))
    levels = draw(st.integers(0, most_levels))
    positions = draw(st.lists(st.integers(0, known - 1), min_size=3 + levels, max_size=3 + levels))
    rows = draw(st.integers(0, 6))
    refused = draw(st.sets(st.integers(0, rows - 1))) if rows else set()
    errors = {
        row: pb.Error(grpc_status_code=draw(st.integers(0, 16)), message=draw(TEXTS))
        for row in draw(st.permutations(sorted(refused)))
    }
    selected = SelectedQuantiles(
        coverage=draw(st.floats(0, 1)),
        levels=tuple(draw(st.lists(st.floats(0, 1), min_size=levels, max_size=levels))),
        positions=tuple(positions),
    )
    found = [quantiles(draw, rows - len(errors), known) for _ in range(quantities)]
    return Answered(found, selected, draw(TEXTS), errors, rows)


def forecast(of: Quantiles, row: int, selected: SelectedQuantiles, unit: str) -> pb.Forecast:
    median, low, high, *others = (float(of.values[row, place]) for place in selected.positions)
    return pb.Forecast(
        median=median, low=low, high=high, unit=unit, in_domain=bool(of.in_domain[row]),
        quantiles=others,
        domain_error_ratio=float(np.broadcast_to(of.domain_error_ratio, len(of.in_domain))[row]),
    )  # fmt: skip


def job_forecast(answer: Answered, row: int) -> pb.JobForecast:
    forecasts: dict[str, Any] = {
        name: forecast(of, row, answer.selected, unit)
        for (name, unit), of in zip(JOB_UNITS.items(), answer.numbers, strict=True)
    }
    return pb.JobForecast(**forecasts)


def same(one: Any, other: Any) -> bool:
    """Return whether messages are equal to the bit; ``==`` fails on NaN and on -0.0."""
    return bool(one.SerializeToString(deterministic=True) == other.SerializeToString(
        deterministic=True
    ))  # fmt: skip


# Predict ---------------------------------------------------------------------------------------


def expected_predict(answer: Answered) -> pb.PredictResponse:
    good = iter(range(answer.rows))
    return pb.PredictResponse(
        forecasts=[
            pb.JobForecast(error=answer.errors[row])
            if row in answer.errors
            else job_forecast(answer, next(good))
            for row in range(answer.rows)
        ],
        release_id=answer.release_id,
        coverage=answer.selected.coverage,
        levels=answer.selected.levels,
    )


def written_predict(answer: Answered) -> bytes:
    return encode.predict_response(
        dict(zip(JOB_UNITS, answer.numbers, strict=True)), answer.selected, answer.release_id,
        errors=answer.errors,
    )  # fmt: skip


@settings(deadline=None)
@given(answers(quantities=4))
def test_a_response_is_the_message_of_its_forecasts(answer):
    written = written_predict(answer)

    assert same(pb.PredictResponse.FromString(written), expected_predict(answer))


@pytest.mark.parametrize("levels", range(MOST_LEVELS + 1))
def test_a_response_holds_the_largest_number_of_levels(levels):
    # Every number of the response is another one: none may get into another one's place.
    numbers = [
        Quantiles(1000 * i + np.arange(2.0 * (3 + levels)).reshape(2, -1), np.array([True, False]))
        for i in range(4)
    ]
    selected = SelectedQuantiles(
        0.8, tuple(i / 32 for i in range(levels)), tuple(range(3 + levels))
    )
    answer = Answered(numbers, selected, "r", {}, rows=2)

    assert same(pb.PredictResponse.FromString(written_predict(answer)), expected_predict(answer))


def test_too_many_levels_are_rejected():
    levels = 30
    numbers = [Quantiles(np.ones((1, 3 + levels)), np.array([True])) for _ in JOB_UNITS]
    selected = SelectedQuantiles(0.8, (0.5,) * levels, tuple(range(3 + levels)))
    with pytest.raises(AssertionError):
        written_predict(Answered(numbers, selected, "r", {}, rows=1))


def test_a_full_response_with_some_errors():
    rng = np.random.default_rng(0)
    errors = {
        row: pb.Error(grpc_status_code=3, message=f"jobs[{row}]") for row in (0, 1, 7, 2000, 4095)
    }
    numbers = [Quantiles(rng.normal(size=(4091, 5)), rng.random(4091) < 0.5) for _ in range(4)]
    answer = Answered(
        numbers, SelectedQuantiles(0.8, (0.05,), (2, 1, 3, 0)), "r", errors, rows=4096
    )

    assert same(pb.PredictResponse.FromString(written_predict(answer)), expected_predict(answer))


def corrected(rows: int, source: str = DEVICE) -> Corrections:
    """Return corrections of all rows but the first."""
    number = np.arange(rows)
    errors = np.asarray(0.1 * number, np.float64)
    sources = ["", *[source] * (rows - 1)]
    return Corrections(errors, number, sources, np.ones(rows), np.ones(rows))


@pytest.mark.parametrize("levels", [0, 1, MOST_LEVELS])
def test_corrections_of_some_quantities_are_in_their_forecasts(levels):
    values = np.arange(3.0 * (3 + levels)).reshape(3, -1)
    inside = np.array([True, False, True])
    numbers = [
        Quantiles(1000 * i + values, inside, corrections=corrected(3) if i in (1, 3) else None)
        for i in range(4)
    ]
    selected = SelectedQuantiles(
        0.8, tuple(i / 32 for i in range(levels)), tuple(range(3 + levels))
    )
    answer = Answered(numbers, selected, "r", {1: pb.Error(message="bad")}, rows=4)

    read = pb.PredictResponse.FromString(written_predict(answer))

    for i, name in enumerate(JOB_UNITS):
        forecasts = [getattr(one, name) for one in read.forecasts if one.HasField("memory_bytes")]
        found = [(one.correction.factor, one.correction.runs) for one in forecasts]
        expected = [(np.exp(0.1 * row), row) for row in range(3)]
        np.testing.assert_allclose(found, expected if i in (1, 3) else [(0, 0)] * 3)
        assert forecasts[0].median == 1000 * i
    first, second, *_ = wire_values.read_job_forecasts(written_back(read))
    assert isinstance(first, JobForecast)
    assert isinstance(second, JobForecast)
    assert second.memory_bytes.correction == Correction(np.exp(0.1), 1, DEVICE)
    assert first.memory_bytes.correction is None


def written_back(read: pb.PredictResponse) -> pb.PredictResponse:
    """Return the response without its error, with ordered ends."""
    kept = pb.PredictResponse(release_id="r", coverage=0.8)
    for one in read.forecasts:
        if one.HasField("error"):
            continue
        row = kept.forecasts.add()
        for name in JOB_UNITS:
            forecast = getattr(row, name)
            forecast.CopyFrom(getattr(one, name))
            forecast.low = forecast.median = forecast.high = 1
            del forecast.quantiles[:]
    return kept


# PredictInterference ---------------------------------------------------------------------------


@st.composite
def colocations(draw: Any) -> tuple[Answered, ColocationQuantiles]:
    answer = draw(answers(quantities=1))
    sizes = [draw(st.integers(1, 4)) for _ in range(answer.rows - len(answer.errors))]
    known = answer.numbers[0].values.shape[1]
    return answer, ColocationQuantiles(
        slowdowns=quantiles(draw, sum(sizes), known),
        sizes=draw(st.sampled_from([sizes, np.array(sizes, dtype=np.intp)])),
        fits=[draw(st.booleans()) for _ in sizes],
        fit_probability=[draw(st.floats(0, 1)) for _ in sizes],
    )


def expected_interference(answer: Answered, of: ColocationQuantiles) -> Any:
    rows = []
    good = begin = 0
    for row in range(answer.rows):
        if row in answer.errors:
            rows.append(pb.ColocationForecast(error=answer.errors[row]))
            continue
        members = range(begin, begin + of.sizes[good])
        rows.append(
            pb.ColocationForecast(
                slowdowns=[forecast(of.slowdowns, i, answer.selected, "slowdown") for i in members],
                fits=of.fits[good],
                fit_probability=of.fit_probability[good],
            )
        )
        good, begin = good + 1, members.stop
    return pb.PredictInterferenceResponse(
        forecasts=rows,
        release_id=answer.release_id,
        coverage=answer.selected.coverage,
        levels=answer.selected.levels,
    )


def written_interference(answer: Answered, of: ColocationQuantiles) -> bytes:
    return encode.interference_response(
        of, answer.selected, answer.release_id, colocations=answer.rows, errors=answer.errors
    )


@settings(deadline=None)
@given(colocations())
def test_an_interference_response_is_the_message_of_its_forecasts(drawn):
    written = pb.PredictInterferenceResponse.FromString(written_interference(*drawn))

    assert same(written, expected_interference(*drawn))


@pytest.mark.parametrize("levels", [0, MOST_LEVELS])
def test_the_largest_colocations(levels):
    selected = SelectedQuantiles(0.8, (0.5,) * levels, tuple(range(3 + levels)))
    sizes = [64, 1, 64]
    slowdowns = Quantiles(np.arange(129.0 * (3 + levels)).reshape(129, -1), np.arange(129) % 2 == 0)
    answer = Answered([], selected, "r", {1: pb.Error(message="no")}, rows=4)
    of = ColocationQuantiles(slowdowns, sizes, [True, False, True], [1.0, 0.5, 0.0])

    written = pb.PredictInterferenceResponse.FromString(written_interference(answer, of))

    assert same(written, expected_interference(answer, of))


# PredictMatrix, PredictStream ------------------------------------------------------------------


@settings(deadline=None)
@given(answers(quantities=4))
def test_a_matrix_response_holds_every_quantile_and_a_bit_for_each_domain(answer):
    selected = dict(zip(JOB_UNITS, answer.numbers, strict=True))
    levels = list(range(answer.numbers[0].values.shape[1]))

    response = pb.PredictMatrixResponse.FromString(
        encode.matrix_response(selected, levels, answer.release_id)
    )

    assert response.release_id == answer.release_id
    assert list(response.levels) == levels
    for name, of in selected.items():
        values = np.frombuffer(getattr(response, name), dtype="<f8").reshape(of.values.shape)
        np.testing.assert_array_equal(values, of.values)
        np.testing.assert_array_equal(np.signbit(values), np.signbit(of.values))
    bits = np.frombuffer(response.in_domain, dtype=np.uint8)
    assert bits.shape == answer.numbers[0].in_domain.shape
    for bit, of in enumerate(answer.numbers):
        np.testing.assert_array_equal((bits >> bit & 1).astype(bool), of.in_domain)
    assert not (bits >> 4).any()


BODIES = {
    "predict": pb.PredictResponse,
    "predict_interference": pb.PredictInterferenceResponse,
    "error": pb.Error,
}


@settings(max_examples=examples(30), deadline=None)
@given(
    request_id=st.integers(0, 2**64 - 1),
    body=st.sampled_from(sorted(BODIES)),
    size=st.sampled_from([0, 1, 100, 127, 128, 16_383, 16_384, 3_000_000]),
)
@example(request_id=0, body="predict", size=0)
def test_a_stream_response_is_the_message_with_that_body(request_id, body, size):
    content = BODIES[body](**{"message" if body == "error" else "release_id": "x" * size})
    field = pb.PredictStreamResponse.DESCRIPTOR.fields_by_name[body].number

    written = encode.stream_response(request_id, field, content.SerializeToString())

    response = pb.PredictStreamResponse.FromString(written)
    assert response.WhichOneof("body") == body
    assert same(response, pb.PredictStreamResponse(request_id=request_id, **{body: content}))
