"""E-detector: the rate of false alarms, and the delay of detection."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from presage.models.drift.e_detector import (
    ABOVE,
    BELOW,
    INSIDE,
    EDetector,
    event_factors,
    interval_factors,
    rank_factors,
    smoothed_rank,
)

parts = st.floats(0.01, 0.85)


@given(parts, st.floats(0, 1), st.floats(0, 1))
def test_interval_bets_do_not_gain_on_allowed_misses(allowed, below, above):
    below, above = allowed * below, min(allowed * above, 1 - allowed * below)
    factors = interval_factors(allowed, allowed)

    mean = below * factors[BELOW] + above * factors[ABOVE] + (1 - below - above) * factors[INSIDE]
    assert (mean <= 1 + 1e-9).all()
    assert (factors > 0).all()


@given(parts, st.floats(0, 1))
def test_event_bets_do_not_gain_on_allowed_events(allowed, part):
    no, yes = event_factors(allowed)

    assert (allowed * part * yes + (1 - allowed * part) * no <= 1 + 1e-9).all()


def test_bets_on_uniform_ranks_neither_gain_nor_lose():
    # Midpoints of even steps in the logarithm of the distance to either end, weighed by its width.
    edges = np.concatenate([[0], np.logspace(-9, np.log10(0.5), 20_001)])
    middle, width = (edges[1:] + edges[:-1]) / 2, np.diff(edges)
    both = [rank_factors(at) + rank_factors(1 - at) for at in middle]
    mean = (np.array(both) * width[:, np.newaxis]).sum(axis=0)

    assert mean == pytest.approx(1, abs=0.13)  # nearer to an end than 1e-9 the stake grows no more
    assert (mean < 1.001).all()


@given(st.lists(st.integers(0, 3), min_size=1, max_size=7), st.floats(0, 0.999))
def test_ranks_of_exchangeable_values_are_uniform(values, point):
    """Over all orders of the values, the rank of the last one is uniform."""
    below = 0.0
    for i, value in enumerate(values):  # each is as likely to be the last
        others = np.array(values[:i] + values[i + 1 :], dtype=np.float64)
        low, high = (smoothed_rank(value, others, tie) for tie in (0.0, 1.0))
        below += np.clip((point - low) / (high - low), 0, 1)
    assert below / len(values) == pytest.approx(point, abs=1e-9)


def outcomes_until_alarm(factors, threshold, most=100_000):
    detector = EDetector(threshold)
    for n in range(1, most):
        detector.add(next(factors))
        if detector.alarm:
            return n
    return most


def endless(make):
    while True:
        yield make()


def test_false_alarms_are_as_rare_as_configured():
    rng, threshold = np.random.default_rng(0), 200
    at_most = interval_factors(0.15, 0.15)
    kinds = {
        "misses": lambda: at_most[rng.choice(3, p=[0.15, 0.7, 0.15])],
        "ranks": lambda: rank_factors(rng.random()),
        "events": lambda: event_factors(0.1)[rng.choice(2, p=[0.9, 0.1])],
    }
    for make in kinds.values():
        runs = [outcomes_until_alarm(endless(make), threshold, 5000) for _ in range(60)]
        assert np.mean(runs) > threshold


def test_a_change_is_detected_within_a_few_outcomes():
    rng, threshold = np.random.default_rng(0), 120_000
    at_most = interval_factors(0.15, 0.15)

    def late():
        return at_most[rng.choice(3, p=[0.02, 0.33, 0.65])]

    runs = [outcomes_until_alarm(endless(late), threshold) for _ in range(40)]
    assert np.median(runs) < 25

    def highest_of_eleven():
        return rank_factors(1 - rng.random() / 11)

    assert outcomes_until_alarm(endless(highest_of_eleven), threshold) < 25


def test_evidence_vanishes_after_a_change_ends():
    detector = EDetector(1000)
    for _ in range(500):
        detector.add(interval_factors(0.15, 0.15)[ABOVE])
    assert detector.alarm
    rng = np.random.default_rng(0)
    for _ in range(500):
        detector.add(interval_factors(0.15, 0.15)[rng.choice(3, p=[0.1, 0.8, 0.1])])
    assert not detector.alarm
