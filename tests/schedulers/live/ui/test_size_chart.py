"""Chart of the devices of an elastic job over time."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from presage.schedulers.live.controller.replayed_state import MAX_SIZES
from presage.schedulers.live.ui.figures import clock
from presage.schedulers.live.ui.size_chart import MAX_CHANGES, make_size_chart
from presage.schedulers.v1 import cluster_pb2 as pb
from tests.schedulers.live.ui.stand_in import elastic, running

SUBMITTED_S = 1e9 - 60
GROWS = "it grows from 1 to 3, since devices are idle"
SIZES = [
    (10, 1, "it starts on 1 of at most 4 devices"),
    (50, 3, GROWS),
    (80, 0, "its node is lost"),
]


def chart_of(sizes, after_s=100.0, **fields):
    return make_size_chart(elastic("job", [], sizes, **fields), SUBMITTED_S + after_s)


def test_steps_begin_with_the_submission_and_end_now():
    chart = chart_of(SIZES)

    assert [(step.x, step.width) for step in chart.steps] == [(0, 10), (10, 40), (50, 30), (80, 20)]
    assert [(step.from_y, step.y) for step in chart.steps] == [
        (100, 100), (100, 75), (75, 25), (25, 100)
    ]  # fmt: skip
    assert chart.steps[2].title == (
        f"{clock(SUBMITTED_S + 50)} to {clock(SUBMITTED_S + 80)}: 3 devices: {GROWS}"
    )
    assert ": 1 device:" in chart.steps[1].title
    assert (chart.fewest, chart.most, chart.fewest_y, chart.most_y) == (1, 4, 75, 0)


def test_the_table_has_the_changes_newest_first_without_the_initial_wait():
    changes = chart_of(SIZES).changes
    assert [change.gpus for change in changes] == [0, 3, 1]
    assert changes[1].reason == GROWS
    assert chart_of([]).changes == []


def test_the_chart_of_a_job_that_has_ended_ends_with_it():
    chart = chart_of(SIZES, after_s=1e6, phase=pb.FINISHED, ended_unix_s=SUBMITTED_S + 80)
    assert [(step.x, step.width) for step in chart.steps] == [
        (0, 12.5), (12.5, 50), (62.5, 37.5), (100, 0)
    ]  # fmt: skip
    assert "now" not in chart.label


def test_the_text_alternative_has_the_size_the_range_and_the_last_sizes():
    label = chart_of(SIZES).label
    assert label.startswith("Devices over time: 0 now; the range is 1 to 4. Last sizes: 0 from ")
    assert f"3 from {clock(SUBMITTED_S + 50)}, 0 from {clock(SUBMITTED_S + 80)}." in label


def test_only_elastic_jobs_have_a_chart():
    assert make_size_chart(running("job", devices=(0, 1)), 1e9) is None


def test_a_chart_without_all_changes_begins_with_the_first_known_one():
    assert MAX_CHANGES == MAX_SIZES  # the limit of a controller
    chart = chart_of([(1000 + i, 1 + i % 2, "") for i in range(MAX_CHANGES)], after_s=1200)

    assert not chart.is_complete
    assert (chart.steps[0].x, chart.steps[0].time_unix_s) == (0, SUBMITTED_S + 1000)
    assert len(chart.changes) == MAX_CHANGES


@given(
    st.lists(st.tuples(st.floats(0, 1e7), st.integers(0, 64)), max_size=30),
    st.floats(-10, 2e7),
    st.integers(1, 63),
)
def test_steps_follow_each_other_within_the_chart(changes, after_s, fewest):
    row = elastic("job", [], [(after_s, gpus, "") for after_s, gpus in sorted(changes)])
    row.job.min_gpus, row.job.max_gpus = fewest, 64
    chart = make_size_chart(row, SUBMITTED_S + after_s)
    assert chart is not None

    end = 0.0
    for step in chart.steps:
        assert step.x == pytest.approx(end, abs=0.01)
        assert step.width >= 0
        assert 0 <= step.y <= 100
        end = step.x + step.width
    assert end == pytest.approx(100, abs=0.01)
    assert {"0", "64"} <= {tick.text for tick in chart.sizes}


@pytest.mark.parametrize(
    ("fewest", "most", "shown"),
    [
        (1, 4, [0, 1, 2, 3, 4]),
        (2, 8, [0, 2, 4, 6, 8]),
        (3, 16, [0, 3, 5, 10, 16]),
        (8, 64, [0, 8, 20, 40, 64]),
        (1, 64, [0, 20, 40, 64]),
        (1, 1024, [0, 200, 400, 600, 800, 1024]),
    ],
)
def test_sizes_on_the_axis_are_the_range_and_round_numbers(fewest, most, shown):
    row = elastic("job", [])
    row.job.min_gpus, row.job.max_gpus = fewest, most
    chart = make_size_chart(row, SUBMITTED_S + 10)

    assert chart is not None
    assert [int(tick.text) for tick in chart.sizes] == shown


@pytest.mark.parametrize("span_s", [1, 7, 61, 900, 4000, 86_399, 86_401, 4e5, 3e7])
def test_times_on_the_axis_are_few_and_round(span_s):
    chart = chart_of([], after_s=span_s)

    assert len(chart.times) <= 6
    assert all(0 <= tick.at <= 100 for tick in chart.times)
    form = r"\d\d-\d\d \d\d:\d\d" if span_s >= 86_400 else r"\d\d:\d\d(:\d\d)?"
    assert all(re.fullmatch(form, tick.text) for tick in chart.times)
    assert chart.has_dates == (span_s >= 86_400)


def test_times_on_the_axis_are_local(monkeypatch):
    monkeypatch.setenv("TZ", "XST-05:30")
    time.tzset()
    try:
        assert {tick.text[-2:] for tick in chart_of([], after_s=5 * 86_400).times} == {"00"}
        assert {tick.text[6:8] for tick in chart_of([], after_s=5 * 86_400).times} == {"00"}
    finally:
        monkeypatch.undo()
        time.tzset()
