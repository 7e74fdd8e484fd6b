"""Positions of the marks in the charts of the page."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from presage.pipelines.evaluation.evaluation_tables import calibration_rows, judged
from presage.pipelines.evaluation.report import charts
from presage.pipelines.evaluation.report.charts import Axis, axis_of, calibration_curves, scatter
from tests.pipelines.evaluation.forecast_examples import row, table


def test_positions_on_a_logarithmic_axis_by_hand():
    axis = Axis(1, 100, log=True)

    assert [axis.at(v) for v in (1, 10, 100)] == pytest.approx([0, 0.5, 1])


@pytest.mark.parametrize(
    ("axis", "unit", "ticks"),
    [
        (Axis(0.4, 1, log=False), "fraction", [0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0]),
        (Axis(5e-5, 0.5, log=True), "seconds", [1e-4, 1e-3, 1e-2, 1e-1]),
        (Axis(0.9, 11, log=True), "slowdown", [1, 2, 5, 10]),
        (Axis(2e8, 5e9, log=True), "bytes", [2**28, 2**29, 2**30, 2**31, 2**32]),
    ],
)
def test_ticks_are_round(axis, unit, ticks):
    assert axis.ticks(unit) == pytest.approx(ticks)


@given(
    st.floats(1e-6, 1e12),
    st.floats(1.21, 1e9),
    st.sampled_from(["seconds", "bytes", "slowdown"]),
)
def test_ticks_are_few_ordered_and_within_the_axis(low, times, unit):
    axis = Axis(low, low * times, log=True)
    ticks = axis.ticks(unit)

    assert ticks == sorted(set(ticks))
    assert len(ticks) <= 10
    assert all(-1e-9 <= axis.at(tick) <= 1 + 1e-9 for tick in ticks)


def test_a_point_on_the_diagonal_is_an_exact_forecast():
    rows = judged(table([row(1.0, 1.0), row(4.0, 2.0, in_domain=False), row(100.0, 80.0)]))
    drawn = scatter(rows, "seconds", axis_of(rows, "seconds"))

    assert drawn.points[0].x == pytest.approx(drawn.points[0].y)
    assert drawn.points[1].y < drawn.points[1].x
    assert drawn.points[0].title == "mlp/a: measured 1 s, forecast 1 s (800 ms to 1.2 s)"
    assert all(0 <= v <= 1 for p in drawn.points for v in (p.x, p.y))


def test_rows_out_of_domain_are_marked():
    rows = judged(table([row(1.0, 1.0, in_domain=True), row(2.0, 1.0, in_domain=False)]))
    drawn = scatter(rows, "seconds", axis_of(rows, "seconds"))

    assert [point.is_out_of_domain for point in drawn.points] == [False, True]


def test_many_rows_are_sampled_and_the_total_is_stated(monkeypatch):
    monkeypatch.setattr(charts, "MOST_POINTS", 10)
    rows = judged(table([row(1.0 + i, 1.0 + i, job_id=str(i)) for i in range(95)]))
    drawn = scatter(rows, "seconds", axis_of(rows, "seconds"))

    assert (len(drawn.points), drawn.rows) == (10, 95)
    assert drawn.points[0].title.startswith("0:")
    assert drawn.points[-1].title.startswith("94:")


@pytest.mark.parametrize("value", [0.0, 0.5, 1.0, 1.2])
def test_equal_fractions_have_a_valid_axis(value):
    rows = judged(table([row(value, value)] * 3))
    drawn = scatter(rows, "fraction", axis_of(rows, "fraction"))

    assert all(0 <= point.x <= 1 for point in drawn.points)


def test_zero_is_not_drawn_on_a_logarithmic_axis():
    rows = judged(table([row(0.0, 1.0), row(1.0, 1.0)]))

    assert len(scatter(rows, "seconds", axis_of(rows, "seconds")).points) == 1


def test_a_calibration_curve_has_a_point_for_each_quantile():
    rows = table([row(y, 1.0) for y in (0.6, 0.75, 1.0, 1.5)])
    (curve,) = calibration_curves(calibration_rows({"memory": rows}))

    assert curve.split == "job"
    assert [(p.x, p.y) for p in curve.points] == [
        (0.05, 0.25), (0.1, 0.5), (0.5, 0.75), (0.9, 0.75), (0.95, 0.75)
    ]  # fmt: skip
    assert curve.points[0].title == "promised 5 %, observed 25.0 %"
