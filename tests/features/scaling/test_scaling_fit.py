"""Correction of the law by measured steps."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from presage.features.scaling.scaling_fit import ScalingFit
from presage.features.scaling.scaling_law import DEFAULT_LAW, ScaledSteps, scaled_steps

SIZES = [(1, 1), (2, 1), (4, 1), (8, 2), (16, 4)]
NOTHING = scaled_steps([])


def steps_of(sizes: list[tuple[int, int]]) -> ScaledSteps:
    gpus, nodes = np.array(sizes, dtype=np.float64).T
    return DEFAULT_LAW.steps(2.0 / gpus, 4e8, gpus, nodes, 1 / gpus)


def test_without_measurements_the_law_stays():
    steps = steps_of(SIZES)
    log_s, covariance = ScalingFit(DEFAULT_LAW, NOTHING, np.array([])).predict(steps)

    assert np.exp(log_s) == pytest.approx(steps.step_s)
    assert np.all(np.diag(covariance) > 0)


def test_a_measured_size_is_predicted_as_measured_and_better_known():
    measured = steps_of([(4, 1)])
    fit = ScalingFit(DEFAULT_LAW, measured, 1.3 * measured.step_s)
    log_s, covariance = fit.predict(steps_of(SIZES))
    _, prior = ScalingFit(DEFAULT_LAW, NOTHING, np.array([])).predict(steps_of(SIZES))

    assert np.exp(log_s[2]) == pytest.approx(1.3 * measured.step_s[0], rel=0.02)
    assert np.all(np.diag(covariance) <= np.diag(prior) + 1e-12)
    assert covariance[2, 2] < 0.1 * prior[2, 2]


def test_synchronization_twice_as_slow_is_found_from_two_sizes():
    true = DEFAULT_LAW.steps(
        2.0 / np.array([4.0, 8.0, 12.0]), 8e8, np.array([4.0, 8.0, 12.0]),
        np.array([1.0, 2.0, 3.0]), 1 / np.array([4.0, 8.0, 12.0]),
    )  # fmt: skip
    predicted = steps_of([(4, 1), (8, 2), (12, 3)])
    fit = ScalingFit(DEFAULT_LAW, predicted.rows(slice(0, 2)), true.step_s[:2])
    found = np.exp(fit.predict(predicted)[0])

    assert predicted.step_s[2] < 0.7 * true.step_s[2]
    assert found[2] == pytest.approx(true.step_s[2], rel=0.15)


def test_a_curve_that_is_not_monotone_is_fitted():
    measured = steps_of(SIZES)
    zigzag_s = measured.step_s * np.array([1.0, 2.0, 0.5, 2.0, 0.5])
    log_s, covariance = ScalingFit(DEFAULT_LAW, measured, zigzag_s).predict(measured)

    assert np.isfinite(log_s).all() and np.isfinite(covariance).all()


@given(
    st.lists(st.tuples(st.integers(1, 64), st.integers(1, 16)), min_size=1, max_size=12),
    st.lists(st.floats(1e-9, 1e9), min_size=12, max_size=12),
)
def test_any_measurements_leave_finite_steps(sizes, seconds):
    measured = steps_of([(gpus, min(gpus, nodes)) for gpus, nodes in sizes])
    fit = ScalingFit(DEFAULT_LAW, measured, np.array(seconds[: len(sizes)]))
    log_s, covariance = fit.predict(steps_of(SIZES))

    assert np.isfinite(log_s).all()
    assert np.all(np.diag(covariance) > -1e-6)
