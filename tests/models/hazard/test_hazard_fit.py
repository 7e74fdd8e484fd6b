"""Fit of the hazard model: it recovers drawn failures, and scores are what they say."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from presage.errors import TrainingError
from presage.features.hazard.hazard_model import DAY_S, HazardModel
from presage.features.hazard.outage import Outage
from presage.models.hazard.hazard_fit import HazardSettings, cross_validate, fit_hazard_model
from presage.models.hazard.hazard_score import calibration_bins, log_losses, share_in_top
from presage.models.hazard.unit_days import make_unit_days

SETTINGS = HazardSettings(None, ((), (3.0,)), 5, 20, 10, 10.0, 0)


def drawn_outages(units, days, base, follow_ups, half_life, seed=0):
    """Return zero-length outages of a self-exciting process, at most one a day and unit."""
    rng = np.random.default_rng(seed)
    model = HazardModel(base, follow_ups, (half_life,))
    counts, found = np.zeros((units, 1)), []
    for day in range(days):
        fails = rng.random(units) < model.hazards(counts, DAY_S).probability
        at_s = (day + 1) * DAY_S - 1e-3
        found += [Outage(unit, at_s, at_s) for unit in np.flatnonzero(fails).tolist()]
        counts = counts * 0.5 ** (1 / half_life) + fails[:, None]
    return found


def test_a_fit_recovers_the_rates_of_drawn_failures():
    outages = drawn_outages(500, 300, 0.01, 0.4, 3.0)
    rows = make_unit_days(outages, 500, from_day=0, until_day=300)
    model = fit_hazard_model(rows, SETTINGS)

    assert model.half_lives_days == (3.0,)
    assert model.base_per_day == pytest.approx(0.01, rel=0.1)
    assert model.follow_ups == pytest.approx(0.4, abs=0.08)
    bases = [base for base, _ in model.draws]
    assert min(bases) < model.base_per_day < max(bases)
    assert len(model.draws) == 20
    assert (model.units, model.days, model.failures) == (500, 300.0, int(rows.fails.sum()))
    assert model == fit_hazard_model(rows, SETTINGS)


def test_cross_validation_prefers_a_constant_where_repairs_predict_nothing():
    outages = drawn_outages(400, 200, 0.02, 0.0, 3.0)
    losses = cross_validate(make_unit_days(outages, 400, from_day=0, until_day=200), SETTINGS)

    assert losses[()] <= losses[(3.0,)] + 1e-4


def test_rows_are_units_that_are_up_and_know_only_their_past():
    outages = [
        Outage(0, 0.5 * DAY_S, 2.5 * DAY_S),
        Outage(1, 3.0 * DAY_S, 3.0 * DAY_S),
        Outage(1, 4.5 * DAY_S, math.inf),
    ]
    rows = make_unit_days(outages, 3, from_day=1, until_day=6)

    assert [(unit, day) for unit, day in zip(rows.unit, rows.day, strict=True)] == [
        (1, 1), (2, 1), (1, 2), (2, 2), (0, 3), (1, 3), (2, 3), (0, 4), (1, 4), (2, 4), (0, 5),
        (2, 5),
    ]  # fmt: skip
    fails = {(u, d) for u, d, f in zip(rows.unit, rows.day, rows.fails, strict=True) if f}
    assert fails == {(1, 2), (1, 4)}
    chosen = rows.rows((rows.unit == 1) & (rows.day == 4))
    assert chosen.repairs[0].tolist() == [1.0]
    assert chosen.next_failure_days.tolist() == [0.5]
    with pytest.raises(TrainingError, match="outage of unit 7"):
        make_unit_days([Outage(7, 0.0, 1.0)], 3, from_day=0, until_day=2)
    with pytest.raises(TrainingError, match="no days from 3 to 3"):
        make_unit_days([], 3, from_day=3, until_day=3)


def test_no_failures_is_one_line():
    rows = make_unit_days([], 3, from_day=0, until_day=9)
    with pytest.raises(TrainingError, match="no node failed"):
        fit_hazard_model(rows, replace(SETTINGS, folds=2))


def test_scores():
    fails = np.array([True, False, False, False])
    chance = np.array([0.5, 0.5, 0.1, 0.1])

    assert log_losses(fails, chance) == pytest.approx(-np.log([0.5, 0.5, 0.9, 0.9]))
    assert share_in_top(fails, chance, 0.25) == 0.5  # one of two equal rows
    assert share_in_top(fails, chance, 0.5) == share_in_top(fails, chance, 1.0) == 1.0
    low, high = calibration_bins(fails, chance, 2)
    assert (low.rows, low.predicted, low.observed) == (2, 0.1, 0.0)
    assert (high.predicted, high.observed, high.is_calibrated) == (0.5, 0.5, True)
    assert np.isfinite(log_losses(np.array([True]), np.array([0.0]))).all()
