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


@pytest.mark.parametrize("high_s", [None, 50.0, 100.0, math.inf])
def test_a_forecast_without_an_upper_bound_has_no_spread(high_s):
    assert log_spread(RuntimePrediction(100.0, 1000, 0, high_s=high_s), 0.9) == 0.0
