"""Errors of forecasts: what is learnt of a class, and how much equal jobs differ."""

from __future__ import annotations

import math
from random import Random
from statistics import fmean, pstdev

import pytest

from presage.schedulers.core.forecasts import RuntimePrediction
from presage.schedulers.what_if.forecast_errors import ForecastErrors, Observed, log_spread


def observed(key, log_errors, spread):
    return [Observed(key, one / spread, spread, 100.0) for one in log_errors]


def jobs_of(errors, key, spread, count=4_000):
    rng = Random(0)
    return [
        spread
        * errors.draw_of_job(errors.draw_of_class(key, errors.draw_common(rng), rng), spread, rng)
        for _ in range(count)
    ]


def test_equal_jobs_vary_alike_whatever_the_spread_of_their_forecasts():
    rng = Random(1)
    varied = [rng.gauss(0.0, 0.1) for _ in range(200)]
    errors = ForecastErrors([*observed("narrow", varied, 0.1), *observed("wide", varied, 1.0)])

    for key, spread in (("narrow", 0.1), ("wide", 1.0)):
        assert pstdev(jobs_of(errors, key, spread)) == pytest.approx(0.1, rel=0.1)


def test_jobs_with_different_spreads_vary_as_much_as_they_did():
    """A class has run on two kinds of devices, of which a release knows one much better."""
    rng = Random(2)
    errors = ForecastErrors(
        one
        for key in range(40)
        for spread in (0.02, 1.0)
        for one in observed(key, [rng.gauss(0.0, 0.1) for _ in range(5)], spread)
    )

    assert pstdev(jobs_of(errors, 0, 1.0)) == pytest.approx(0.1, rel=0.25)


def test_the_error_of_a_class_is_known_by_jobs_times_squared_spread():
    """Twelve jobs with a spread of 0.1, whose variation is 0.1, tell as much as three with 0.2."""
    rng = Random(3)
    others = [
        one
        for key in range(50)
        for one in observed(key, [rng.gauss(0.0, 0.1) for _ in range(8)], 0.2)
    ]
    errors = ForecastErrors(
        [*others, *observed("many", [0.0] * 12, 0.1), *observed("few", [0.0] * 3, 0.2)]
    )

    def deviation(key):
        return pstdev(errors.draw_of_class(key, 0.0, Random(i)) for i in range(4_000))

    assert deviation("many") == pytest.approx(deviation("few"), rel=0.02)
    assert deviation("new") > 1.1 * deviation("few")


def test_classes_differ_by_their_errors_not_by_how_exactly_these_are_known():
    """All forecasts are right, but those with a small spread vary by many times that."""
    rng = Random(4)
    errors = ForecastErrors(
        one
        for key in range(40)
        for one in observed(key, [rng.gauss(0.0, 0.1)], (0.02, 0.5)[key % 2])
    )

    assert pstdev(jobs_of(errors, "new", 0.5)) < 0.5 * 0.7


def test_classes_that_differ_let_new_ones_differ():
    rng = Random(5)
    errors = ForecastErrors(
        one for key in range(60) for one in observed(key, [rng.gauss(0.0, 0.6)] * 3, 0.3)
    )

    assert pstdev(jobs_of(errors, "new", 0.3)) == pytest.approx(0.6, rel=0.2)


def test_two_jobs_of_each_class_are_enough_to_learn_how_much_equal_jobs_vary():
    rng = Random(6)
    errors = ForecastErrors(
        one
        for key in range(400)
        for one in observed(key, [rng.gauss(0.0, 0.1), rng.gauss(0.0, 0.1)], 0.3)
    )

    drawn = [errors.draw_of_job(0.0, 0.3, rng) * 0.3 for _ in range(2_000)]
    assert pstdev(drawn) == pytest.approx(0.1, rel=0.1)


def test_long_jobs_decide_the_error_of_a_class():
    short, long = Observed("m", -1.0, 0.3, 1.0), Observed("m", 1.0, 0.3, 1_000.0)
    errors = ForecastErrors([short] * 5 + [long] * 5)

    assert fmean(jobs_of(errors, "m", 0.3)) > 0.2


def test_forecasts_near_the_largest_number_are_learnt_from():
    errors = ForecastErrors([Observed("m", 0.5, 0.3, 1e300), Observed("m", 0.5, 0.3, 1e300)])

    assert math.isfinite(errors.draw_of_class("m", 0.0, Random(0)))


def test_a_class_that_has_run_is_as_wrong_again():
    errors = ForecastErrors(observed("m", [0.5, 0.52, 0.48, 0.5], 0.3))

    assert fmean(jobs_of(errors, "m", 0.3)) == pytest.approx(0.5, abs=0.05)


def test_a_class_that_has_not_run_has_the_spread_of_its_forecast():
    errors = ForecastErrors([])

    assert pstdev(jobs_of(errors, "new", 0.4)) == pytest.approx(0.4, rel=0.05)
    assert pstdev(jobs_of(errors, "new", 0.8)) == pytest.approx(0.8, rel=0.05)


def test_a_job_is_at_least_as_long_as_it_has_run():
    errors, rng = ForecastErrors(observed("m", [0.0, 0.1, -0.1], 0.2)), Random(0)

    assert all(errors.draw_of_job(0.0, 0.2, rng, least=3.0) >= 3.0 for _ in range(200))


def test_running_jobs_that_are_late_make_their_class_late():
    errors, rng = ForecastErrors([]), Random(0)
    late = [errors.draw_of_class("m", 0.0, rng, [(1.0, 0.2)] * 3) for _ in range(400)]

    assert fmean(late) > 1.0
    wide = [errors.draw_of_class("m", 0.0, rng, [(1.0, 2.0)] * 3) for _ in range(400)]
    # Where the spread is wide, the variation of equal jobs explains less of it.
    assert fmean(wide) > fmean(late) + 0.05


@pytest.mark.parametrize("high_s", [None, 50.0, 100.0, math.inf])
def test_a_forecast_without_an_upper_bound_has_no_spread(high_s):
    assert log_spread(RuntimePrediction(100.0, 1000, 0, high_s=high_s), 0.9) == 0.0
