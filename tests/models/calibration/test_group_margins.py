"""Margins for groups without a measurement."""

import numpy as np
import pytest

from presage.models.calibration.conformal import conformal_margin
from presage.models.calibration.group_margins import group_margin


def margin(y, groups, coverage=0.8):
    zero = np.zeros(len(y))
    return group_margin(y, zero, zero, groups, coverage=coverage)


def test_groups_count_alike_however_many_rows_they_have():
    groups = np.array(["a"] * 900 + [f"group {i}" for i in range(9) for _ in range(10)])
    y = np.where(groups == "a", 0.1, 1.0)

    assert margin(y, groups) == 1.0
    assert conformal_margin(y, 0 * y, 0 * y, coverage=0.8) == 0.1


def test_new_groups_have_the_nominal_coverage_on_average():
    rng = np.random.default_rng(0)
    covered, by_rows = [], []
    for _ in range(200):
        groups = np.repeat(np.arange(13).astype(str), 30)
        y = np.repeat(rng.normal(size=13), 30) + 0.5 * rng.normal(size=390)
        known = groups != "0"
        covered.append(np.mean(np.abs(y[~known]) <= margin(np.abs(y[known]), groups[known])))
        zero = np.zeros(15)  # what rows of other groups say of one another
        spread = np.abs(y[30:60] - np.median(y[30:60]))
        by_rows.append(
            np.mean(np.abs(y[~known]) <= conformal_margin(spread[:15], zero, zero, coverage=0.8))
        )

    assert np.mean(covered) == pytest.approx(0.8, abs=0.05)
    assert np.mean(by_rows) < 0.6


def test_of_few_groups_the_margin_is_a_high_quantile_of_their_own():
    groups = np.repeat(np.array(["a", "b"]), 100)
    y = np.concatenate([np.linspace(0, 1, 100), np.linspace(0, 3, 100)])

    assert margin(y, groups) == pytest.approx(0.8 * 0.2 + 2.4 * 0.8, abs=0.03)


def test_a_single_group_is_calibrated_as_by_rows():
    y = np.linspace(0, 1, 1000)

    assert margin(y, np.full(1000, "a")) == pytest.approx(0.8, abs=0.01)
