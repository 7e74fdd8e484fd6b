"""Probability that jobs fit in memory, against sums of known distribution."""

from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from presage.serving.predictor.memory_fit import fit_probability

LEVELS = (0.05, 0.1, 0.5, 0.9, 0.95)
GIB = float(1 << 30)
MEMORY = GIB * np.array([[1, 1.5, 2, 4, 7], [1, 2, 3, 4, 5], [0, 0, 0.5, 0.5, 0.5]])
TOTALS = MEMORY.sum(axis=0)

quantiles = st.lists(
    st.lists(st.floats(0, 64), min_size=5, max_size=5).map(sorted), min_size=1, max_size=4
).map(lambda rows: GIB * np.array(rows))
capacities = st.floats(0, 400).map(lambda gib: gib * GIB)


def lognormal(level, *, medians, sigmas):
    """Return that quantile of each member."""
    return np.array(medians) * np.exp(NormalDist().inv_cdf(level) * np.array(sigmas))


@pytest.mark.parametrize("truth", [0.9, 0.925, 0.95, 0.97, 0.99, 0.999])
@pytest.mark.parametrize(
    ("medians", "sigmas"),
    [
        ([3e9], [0.3]),
        ([3e9, 1e9], [0.3, 0.3]),
        ([1e9, 1e9], [0.05, 1.0]),  # together skewed even in the logarithm
        ([1e9, 1e10, 3e9], [0.8, 0.05, 0.3]),
    ],
)
def test_the_probability_of_skewed_memory_is_not_too_high(truth, medians, sigmas):
    memory = np.array([lognormal(p, medians=medians, sigmas=sigmas) for p in LEVELS]).T
    capacity = lognormal(truth, medians=medians, sigmas=sigmas).sum()

    answer = fit_probability(memory, LEVELS, capacity_bytes=capacity)

    assert answer <= truth + 0.01
    assert 1 - answer >= (1 - truth) / 10  # far out it is the risk that counts
    if len(set(sigmas)) == 1:
        assert answer == pytest.approx(truth, abs=1e-9)


@pytest.mark.parametrize(("level", "total"), list(zip(LEVELS, TOTALS, strict=True)))
def test_probability_ninety_percent_is_where_the_sum_of_those_quantiles_fits(level, total):
    just, less, more = (
        fit_probability(MEMORY, LEVELS, capacity_bytes=total * part) for part in (1, 0.999, 1.001)
    )

    assert just == level
    assert less < level < more


@given(quantiles, capacities)
def test_the_probability_of_a_level_means_that_the_sum_of_its_quantiles_fits(memory, capacity):
    answer = fit_probability(memory, LEVELS, capacity_bytes=capacity)

    for level, total in zip(LEVELS, memory.sum(axis=0), strict=True):
        if abs(capacity - total) > 1:  # byte
            assert (answer >= level) == (total <= capacity) or answer == pytest.approx(level)


@given(quantiles, capacities, capacities)
def test_more_memory_never_lowers_the_probability(memory, one, other):
    less, more = (fit_probability(memory, LEVELS, capacity_bytes=c) for c in sorted((one, other)))

    assert 0 <= less <= more <= 1


def test_certain_memory_fits_or_does_not():
    certain = np.full((1, 5), 3 * GIB)

    assert fit_probability(certain, LEVELS, capacity_bytes=3 * GIB) == 1.0
    assert fit_probability(certain, LEVELS, capacity_bytes=2.9 * GIB) == 0.0


def test_levels_that_agree_leave_the_tail_beyond_them_uncertain():
    memory = GIB * np.array([[1.0, 2.0, 4.0, 4.0, 4.0]])  # calibration cut the upper half off

    assert fit_probability(memory, LEVELS, capacity_bytes=4 * GIB) == 0.95
    assert 0.95 < fit_probability(memory, LEVELS, capacity_bytes=5 * GIB) < 0.99


def test_a_member_without_memory_changes_nothing():
    nothing = np.zeros((1, 5))

    assert fit_probability(nothing, LEVELS, capacity_bytes=GIB) == 1.0
    assert fit_probability(
        np.vstack([MEMORY, nothing]), LEVELS, capacity_bytes=12 * GIB
    ) == fit_probability(MEMORY, LEVELS, capacity_bytes=12 * GIB)
