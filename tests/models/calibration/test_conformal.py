import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from presage.errors import TrainingError
from presage.models.calibration.conformal import calibrate, conformal_margin, cv_plus
from presage.models.training.fit import LEVELS


def test_the_90_percent_margin_of_nine_scores_is_the_largest():
    y = np.arange(9.0)
    zero = np.zeros(9)

    # Scores are y itself; rank ceil(10 * 0.9) = 9.
    assert conformal_margin(y, zero, zero, coverage=0.9) == 8.0


def test_too_few_rows_for_a_margin_name_the_needed_number():
    with pytest.raises(TrainingError, match="needs 9 calibration rows, there are 8"):
        conformal_margin(np.zeros(8), np.zeros(8), np.zeros(8), coverage=0.9)


def test_a_band_that_is_too_wide_is_narrowed():
    y = np.zeros(50)

    assert conformal_margin(y, y - 5, y + 5, coverage=0.8) == -5


@given(st.integers(0, 2**32 - 1), st.sampled_from([0.8, 0.9]))
def test_calibration_rows_have_the_nominal_coverage(seed, coverage):
    rng = np.random.default_rng(seed)
    y = rng.normal(size=200)
    low, high = np.full(200, -0.1), np.full(200, 0.1)
    margin = conformal_margin(y, low, high, coverage=coverage)

    assert ((low - margin <= y) & (y <= high + margin)).mean() >= coverage


def test_new_rows_have_the_nominal_coverage_on_average():
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
def test_quantiles_stay_ordered_with_any_margins(values, wide, narrow):
    row = np.sort(np.array(values))[None]
    out = calibrate(row, {0.05: wide, 0.1: narrow}, LEVELS)

    assert (np.diff(out[0]) >= 0).all()
    assert out[0, 2] == row[0, 2]


def asked_of_three(spread: float, rows: int = 400):
    """Return quantiles of 50 rows of normal noise, by networks that differ by ``spread``."""
    rng = np.random.default_rng(0)
    y, fold = rng.normal(size=rows), np.arange(rows) % 3
    left_out = np.tile([-0.2, -0.1, 0.0, 0.1, 0.2], (rows, 1))
    shift = spread * np.array([-1.0, 0.0, 1.0])[:, None, None]
    asked = np.tile(left_out[0], (3, 50, 1)) + shift
    return cv_plus(y, left_out, fold, asked, LEVELS)


def test_cv_plus_has_the_nominal_coverage():
    quantiles = asked_of_three(0.0)
    new = np.random.default_rng(1).normal(size=20000)

    for low, coverage in ((0, 0.9), (1, 0.8)):
        inside = (quantiles[0, low] <= new) & (new <= quantiles[0, 4 - low])
        assert inside.mean() == pytest.approx(coverage, abs=0.03)


def test_cv_plus_is_wider_where_the_networks_differ():
    agreed, differed = (asked_of_three(spread) for spread in (0.0, 3.0))

    assert (differed[:, 3] - differed[:, 1] > 1.5 * (agreed[:, 3] - agreed[:, 1])).all()
    assert (np.diff(differed, axis=1) >= 0).all()
    np.testing.assert_allclose(differed[:, 2], agreed[:, 2], atol=1e-9)


def test_cv_plus_with_too_few_rows_names_the_needed_number():
    with pytest.raises(TrainingError, match="needs 9 calibration rows, there are 8"):
        asked_of_three(0.0, rows=8)
