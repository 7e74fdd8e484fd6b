"""Recent mean of compute usage."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from presage.schedulers.core.reports.compute_usage import Usage


def test_a_mean_is_weighted_by_time_and_forgets():
    usage = Usage(10.0)
    assert usage.at("job", 100.0) == 0.0
    usage.report("job", 100.0, 400.0)
    assert usage.at("job", 100.0) == 0.0
    assert usage.at("job", 104.0) == 400.0
    usage.report("job", 104.0, 100.0)
    assert usage.at("job", 112.0) == pytest.approx((2 * 400 + 8 * 100) / 10)
    assert usage.at("job", 120.0) == 100.0
    usage.forget("job")
    assert usage.at("job", 120.0) == 0.0


def test_a_paused_job_falls_slowly_and_not_at_once():
    usage = Usage(30.0)
    usage.report("job", 0.0, 600.0)
    usage.report("job", 30.0, 0.0)
    assert usage.at("job", 31.0) == pytest.approx(600 * 29 / 30)
    assert usage.at("job", 60.0) == 0.0


def test_the_second_of_two_readings_at_one_time_counts():
    usage = Usage(10.0)
    usage.report("job", 5.0, 900.0)
    usage.report("job", 5.0, 300.0)
    assert usage.at("job", 6.0) == 300.0


@given(
    steps=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 1000)), min_size=1, max_size=20),
    later_s=st.integers(1, 40),
)
def test_a_mean_is_the_area_under_the_reported_values(steps, later_s):
    usage, now_s, curve = Usage(20.0), 0, {}
    for gap_s, milli in steps:
        now_s += gap_s
        usage.report("job", float(now_s), float(milli))
        curve[now_s] = milli
    end_s = now_s + later_s
    seconds = range(max(min(curve), end_s - 20), end_s)
    values = [curve[max(at for at in curve if at <= second)] for second in seconds]
    assert usage.at("job", float(end_s)) == pytest.approx(sum(values) / len(values))
