"""Points of a history: what they keep of the samples, and the limits of requests."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from presage.errors import InvalidRequestError
from presage.schedulers.live.controller.history.history_file import ROWS, Row
from presage.schedulers.live.controller.history.history_points import (
    MAX_POINTS,
    make_points,
    requested_minutes,
)
from presage.schedulers.live.controller.history.history_sample import Sample
from presage.schedulers.v1 import cluster_pb2 as pb

NOW_S = 29_000_000 * 60.0

values = st.floats(0, 1e6)
samples = st.builds(
    lambda states, counts, errors, readings: Sample._make(
        (*states, *counts, *errors, 0.0, *readings)
    ),
    st.tuples(*[values] * 7),
    st.tuples(*[st.integers(0, 100)] * 3),
    st.tuples(values, values),
    st.tuples(values, values),
).map(lambda one: one if one.predicted_jobs else one._replace(error_sum=0.0))
histories = st.dictionaries(st.integers(0, 3000), samples, max_size=40).map(
    lambda found: [Row(minute, found[minute]) for minute in sorted(found)]
)


@settings(max_examples=30, deadline=None)
@given(rows=histories, step=st.integers(1, 1440))
def test_points_keep_extremes_means_and_sums_of_all_samples(rows, step):
    points = make_points(rows, step, has_errors=True)

    times = [point.time_unix_s for point in points]
    assert times == sorted(set(times))
    assert all(time_s % (60 * step) == 0 for time_s in times)
    assert sum(point.samples for point in points) == len(rows)
    assert sum(point.finished_jobs for point in points) == sum(r.sample.finished_jobs for r in rows)
    assert sum(p.forecast_errors.jobs for p in points) == sum(r.sample.predicted_jobs for r in rows)
    for name in ("devices", "waiting_jobs", "slo_violated_jobs"):
        found = [getattr(point, name) for point in points]
        of_rows = [getattr(row.sample, name) for row in rows]
        assert min((one.least for one in found), default=0) == min(of_rows, default=0)
        assert max((one.greatest for one in found), default=0) == max(of_rows, default=0)
        assert all(one.least <= one.mean <= one.greatest for one in found)
        total = sum(one.mean * p.samples for one, p in zip(found, points, strict=True))
        assert total == pytest.approx(sum(of_rows), rel=1e-9, abs=1e-6)
    for name in ("hottest_c", "power_w"):
        known = [getattr(row.sample, name) for row in rows if getattr(row.sample, name)]
        found = [getattr(point, name) for point in points if point.HasField(name)]
        assert min((one.least for one in found), default=0) == min(known, default=0)
        assert max((one.greatest for one in found), default=0) == max(known, default=0)
    errors = [point.forecast_errors for point in points]
    assert sum(one.mean * one.jobs for one in errors) == pytest.approx(
        sum(row.sample.error_sum for row in rows), rel=1e-9, abs=1e-6
    )


def test_a_worked_example():
    rows = [
        Row(120, Sample(devices=4, waiting_jobs=2, predicted_jobs=1, error_sum=0.5)),
        Row(121, Sample(devices=2, waiting_jobs=4)),
        Row(180, Sample(devices=3, finished_jobs=7)),
    ]
    first, second = make_points(rows, 60, has_errors=False)
    assert (first.time_unix_s, second.time_unix_s) == (7200, 10_800)
    assert first.devices == pb.SampledValue(mean=3, least=2, greatest=4)
    assert (first.samples, second.finished_jobs) == (2, 7)
    assert not first.HasField("forecast_errors")
    (joined,) = make_points(rows, 1440, has_errors=True)
    assert (joined.forecast_errors.jobs, joined.forecast_errors.mean) == (1, 0.5)


def test_a_request_without_times_is_for_the_last_hour():
    first, last, step = requested_minutes(pb.HistoryRequest(), NOW_S)
    assert (first, last, step) == (29_000_000 - 60, 29_000_000, 1)


@settings(max_examples=50, deadline=None)
@given(
    from_s=st.floats(0, 1e11),
    to_s=st.floats(0, 1e11),
    step=st.integers(1, 1440).map(lambda n: 60 * n),
)
def test_valid_requests_have_a_limited_number_of_points(from_s, to_s, step):
    request = pb.HistoryRequest(from_unix_s=from_s, to_unix_s=to_s, step_s=step)
    try:
        first, last, minutes = requested_minutes(request, NOW_S)
    except InvalidRequestError:
        return
    assert first % minutes == 0
    assert (last - first + 1) % minutes == 0
    assert 0 < (last - first + 1) // minutes <= MAX_POINTS
    assert last - first <= ROWS + 3 * 1440


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"step_s": 90}, "not a multiple of 60"),
        ({"step_s": 172_800}, "not a multiple of 60"),
        ({"step_s": -60}, "step_s: -60 is no time"),
        ({"step_s": math.nan}, "step_s: nan is no time"),
        ({"from_unix_s": math.inf}, "from_unix_s: inf is no time"),
        ({"from_unix_s": NOW_S, "to_unix_s": NOW_S - 60}, "exchange them"),
        ({"from_unix_s": 1.0}, "10,081 steps of 60 s, the maximum is 2,000"),
    ],
)
def test_invalid_requests_are_rejected_in_plain_words(fields, problem):
    with pytest.raises(InvalidRequestError, match=problem):
        requested_minutes(pb.HistoryRequest(**fields), NOW_S)
