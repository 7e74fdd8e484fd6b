import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from presage.features.errors import TrainingError
from presage.models.fit import LEVELS
from presage.models.splits import FOLDS
from presage.pipelines import cross_validation as cv


def folds(n: int, seed: int):
    rng = np.random.default_rng(seed)
    return {split: rng.integers(0, FOLDS, n) for split in cv.SPLITS}


@given(st.integers(1, 3), st.integers(0, 99))
def test_no_member_sees_the_fold_it_is_judged_on(ensemble, seed):
    of_row = folds(40, seed)
    members = cv.plan_members(ensemble, of_row)
    weights = cv.training_weights(members, of_row)

    for split in cv.SPLITS:
        for fold in np.unique(of_row[split]):
            judged_by = members.of(split, fold)
            assert len(judged_by) == ensemble
            assert not weights[judged_by][:, of_row[split] == fold].any()
            assert weights[judged_by][:, of_row[split] != fold].all()


def test_out_of_fold_takes_each_row_from_its_own_ensemble():
    members = cv.plan_members(2, {split: np.arange(5) for split in cv.SPLITS})
    outputs = np.tile(np.arange(len(members.fold))[:, None, None], (1, 5, len(LEVELS)))
    found = cv.out_of_fold(outputs.astype(float), members, "family", np.arange(5))

    expected = [members.of("family", fold).mean() for fold in range(5)]
    assert found[:, LEVELS.index(0.5)].tolist() == expected


def test_a_folds_intervals_do_not_know_its_own_values():
    rng = np.random.default_rng(0)
    y, of_row = rng.normal(size=100), np.arange(100) % 5
    quantiles = np.tile([-0.2, -0.1, 0, 0.1, 0.2], (100, 1))
    before = cv.calibrate_out_of_fold(y, quantiles, of_row)
    y[of_row == 3] += 1000

    after = cv.calibrate_out_of_fold(y, quantiles, of_row)
    np.testing.assert_array_equal(before[of_row == 3], after[of_row == 3])
    assert (after[of_row == 1] != before[of_row == 1]).any()


def test_calibrated_intervals_cover_what_they_promise():
    rng = np.random.default_rng(1)
    y, of_row = rng.standard_t(4, size=2000), np.arange(2000) % 5
    quantiles = np.tile([-0.2, -0.1, 0, 0.1, 0.2], (2000, 1))
    found = cv.calibrate_out_of_fold(y, quantiles, of_row)

    assert 0.77 <= ((found[:, 1] <= y) & (y <= found[:, 3])).mean() <= 0.83
    assert 0.87 <= ((found[:, 0] <= y) & (y <= found[:, 4])).mean() <= 0.93


def test_too_few_rows_to_calibrate_say_how_many_are_needed():
    with pytest.raises(TrainingError, match="needs 9 calibration rows"):
        cv.margins(np.zeros(5), np.zeros((5, 5)))
