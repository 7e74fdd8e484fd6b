import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from presage.features.errors import TrainingError
from presage.models.conformal import calibrate, conformal_margin
from presage.models.fit import LEVELS


def test_by_hand_the_ninth_of_nine_scores_for_90_percent():
    y = np.arange(9.0)
    zero = np.zeros(9)

    # Scores are y itself; rank ceil(10 * 0.9) = 9.
    assert conformal_margin(y, zero, zero, coverage=0.9) == 8.0


def test_too_few_rows_say_how_many_are_needed():
    with pytest.raises(TrainingError, match="needs 9 calibration rows, there are 8"):
        conformal_margin(np.zeros(8), np.zeros(8), np.zeros(8), coverage=0.9)


def test_a_band_that_is_too_wide_is_narrowed():
    y = np.zeros(50)

    assert conformal_margin(y, y - 5, y + 5, coverage=0.8) == -5


@given(st.integers(0, 2**32 - 1), st.sampled_from([0.8, 0.9]))
def test_calibration_rows_are_covered_as_often_as_promised(seed, coverage):
    rng = np.random.default_rng(seed)
    y = rng.normal(size=200)
    low, high = np.full(200, -0.1), np.full(200, 0.1)
    margin = conformal_margin(y, low, high, coverage=coverage)

    assert ((low - margin <= y) & (y <= high + margin)).mean() >= coverage


def test_new_rows_are_covered_on_average():
    rng = np.random.default_rng(0)
    covered = []
    for _ in range(300):
        y = rng.standard_t(3, size=40)
        zero = np.zeros(39)
        margin = conformal_margin(y[:39], zero, zero, coverage=0.9)
        covered.append(abs(y[39]) <= margin)

    assert 0.86 <= np.mean(covered) <= 0.95


@given(
    st.lists(st.floats(-3, 3), min_size=5, max_size=5),
    st.floats(-2, 2), st.floats(-2, 2),
)  # fmt: skip
def test_whatever_the_margins_quantiles_stay_in_order(values, wide, narrow):
    row = np.sort(np.array(values))[None]
    out = calibrate(row, {0.05: wide, 0.1: narrow}, LEVELS)

    assert (np.diff(out[0]) >= 0).all()
    assert out[0, 2] == row[0, 2]
