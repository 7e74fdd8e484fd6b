"""Hazard model: closed forms against simulation, limits, files, and invalid models."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from presage.errors import ConfigError
from presage.features.hazard.hazard_file import pretrained_hazard_file, read_hazard_model
from presage.features.hazard.hazard_model import DAY_S, HazardModel, parse_hazard_model
from presage.features.hazard.outage_features import outage_features

MODEL = HazardModel(0.01, 0.3, (1.0, 7.0), ((0.008, 0.2), (0.012, 0.4)), level_failures=10.0)


def chance(model, ages_days, within_s):
    spans = [(-age * DAY_S, -age * DAY_S) for age in ages_days]
    counts = outage_features(spans, 0.0, model.half_lives_s, observed_from_s=-1e9).decayed_repairs
    return model.hazards(np.array([counts]), within_s)


def test_features_of_a_history_up_to_a_moment():
    spans = [(0.0, 10.0), (50.0, 70.0), (95.0, 130.0), (200.0, 300.0)]
    found = outage_features(spans, 110.0, [20.0, 40.0], siblings=[[(60.0, 90.0)], []])

    assert found.since_repair_s == 40.0
    assert found.repair_s == 20.0
    assert found.failures == 3
    assert found.age_s == 110.0
    assert found.decayed_repairs == pytest.approx((0.5**5 + 0.5**2, 0.5**2.5 + 0.5))
    assert found.sibling_repairs == pytest.approx((0.5, 0.5**0.5))
    never = outage_features([], 5.0, [1.0])
    assert (never.since_repair_s, never.repair_s, never.failures) == (math.inf, 0.0, 0)
    # Before its repair the present outage counts as a failure, not as a repair.
    assert outage_features([(1.0, math.inf)], 5.0, [1.0]).decayed_repairs == (0.0,)


def test_a_clock_that_steps_back_makes_no_repair_count_more_than_once():
    assert outage_features([(0.0, 100.0)], 100.0, [1.0]).decayed_repairs == (1.0,)
    assert outage_features([(0.0, 100.0)], 40.0, [1.0]).decayed_repairs == (0.0,)


@given(
    st.lists(st.floats(0, 1e4), max_size=5),
    st.floats(0, 1e9),
    st.floats(0, 1e9),
)
def test_chances_are_probabilities_that_grow_with_time_and_with_repairs(ages, first_s, second_s):
    short_s, long_s = sorted((first_s, second_s))
    short, long = chance(MODEL, ages, short_s), chance(MODEL, ages, long_s)

    for found in (short, long):
        assert 0 <= found.low[0] <= found.probability[0] <= found.high[0] <= 1
    assert short.probability[0] <= long.probability[0]
    assert chance(MODEL, [*ages, 3.0], long_s).probability[0] >= long.probability[0] - 1e-12


def test_the_closed_form_equals_the_integral_of_the_hazard():
    ages, within_s = (0.5, 12.0), 9 * DAY_S
    t = np.linspace(0, 9, 200_001)
    hazard = MODEL.base_per_day + MODEL.follow_ups * sum(
        np.log(2) / h * 0.5 ** ((age + t) / h) / 2 for age in ages for h in MODEL.half_lives_days
    )
    expected = 1 - math.exp(-np.trapezoid(hazard, t))

    assert chance(MODEL, ages, within_s).probability[0] == pytest.approx(expected, rel=1e-6)


def test_extreme_times():
    assert chance(MODEL, (), 0.0).probability[0] == chance(MODEL, (), -5.0).probability[0] == 0.0
    assert chance(MODEL, (), math.inf).probability[0] == 1.0
    assert chance(MODEL, (), math.nan).probability[0] == 1.0
    flat = HazardModel(0.01, 0.0, ())
    assert flat.hazards(np.zeros((2, 0)), DAY_S).probability == pytest.approx(-math.expm1(-0.01))


def test_the_level_moves_from_the_fitted_rate_to_that_of_the_cluster():
    assert MODEL.level(0, 0.0) == 1.0
    assert MODEL.level(20, 1000.0) == pytest.approx(30 / 20)
    assert MODEL.level(1e6, 1e7) == pytest.approx(10, rel=1e-3)


def test_the_added_rate_is_the_slope_of_the_added_failures():
    counts = np.array([[2.0, 0.5], [0.0, 0.0]])
    slope = MODEL.follow_ups * MODEL.added_failures(counts, 1.0) * DAY_S

    assert MODEL.added_rate_per_day(counts) == pytest.approx(slope, rel=1e-4)


def test_the_pretrained_model_is_valid_and_survives_a_round_trip():
    model = read_hazard_model(pretrained_hazard_file())

    assert model.units == 400
    assert len(model.draws) == 100
    assert parse_hazard_model(json.dumps(model.as_json())) == model


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"schema": 2}, "has schema 2, must be 1"),
        ({"base_per_day": 0.02}, "its digest differs"),
        ({"sha256": "x"}, "its digest differs"),
    ],
)
def test_invalid_files_are_reported_in_one_line(tmp_path, change, words):
    path = tmp_path / "hazard.json"
    path.write_text(json.dumps(MODEL.as_json() | change))
    with pytest.raises(ConfigError, match=words) as error:
        read_hazard_model(path)
    assert str(error.value).startswith(str(path))
    assert "\n" not in str(error.value)


def test_files_that_are_no_model(tmp_path):
    for text in ("", "[]", "{}", "[" * 100_000):
        with pytest.raises(ConfigError, match=r"is not JSON|has schema None"):
            parse_hazard_model(text)
    with pytest.raises(ConfigError, match="cannot be read as a hazard model"):
        read_hazard_model(tmp_path / "absent.json")


@pytest.mark.parametrize(
    "values",
    [
        {"base_per_day": 0.0},
        {"base_per_day": math.nan},
        {"base_per_day": math.inf},
        {"follow_ups": 1.0},
        {"follow_ups": -0.1},
        {"half_lives_days": (0.0,)},
        {"half_lives_days": (math.nan,)},
        {"level_failures": 0.0},
        {"draws": ((math.nan, 0.1),)},
    ],
)
def test_invalid_parameters_are_errors(values):
    with pytest.raises(ConfigError, match="must be"):
        HazardModel(**({"base_per_day": 1.0, "follow_ups": 0.1, "half_lives_days": ()} | values))
