import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from presage.errors import TrainingError
from presage.models.calibration.margins import NOVELTIES, Margins
from presage.models.training.fit import LEVELS
from presage.models.training.splits import FOLDS, HELD_OUT_FOLD
from presage.pipelines.evaluation import cross_validation as cv


def on_one_device(y):
    """Return that all rows are of one device."""
    return np.full(len(y), "k80", dtype=object)


def folds(n: int, seed: int):
    rng = np.random.default_rng(seed)
    return {split: rng.integers(0, FOLDS, n) for split in cv.SPLITS}


@given(st.integers(1, 3), st.integers(0, 99))
def test_no_member_is_trained_on_the_fold_that_it_is_scored_on(ensemble, seed):
    of_row = folds(40, seed)
    members = cv.plan_members(ensemble, of_row)
    weights = cv.training_weights(members, of_row)

    for split in cv.SPLITS:
        for fold in np.unique(of_row[split]):
            judged_by = members.ensemble(split, fold)
            assert len(judged_by) == ensemble
            assert not weights[judged_by][:, of_row[split] == fold].any()
            assert weights[judged_by][:, of_row[split] != fold].all()


def test_out_of_fold_takes_each_row_from_its_own_ensemble():
    members = cv.plan_members(2, {split: np.arange(5) for split in cv.SPLITS})
    outputs = np.tile(np.arange(len(members.fold))[:, None, None], (1, 5, len(LEVELS)))
    found = cv.out_of_fold(outputs.astype(float), members, "family", np.arange(5))

    expected = [members.ensemble("family", fold).mean() for fold in range(5)]
    assert found[:, LEVELS.index(0.5)].tolist() == expected


def test_the_intervals_of_a_fold_do_not_depend_on_its_own_values():
    rng = np.random.default_rng(0)
    y, of_row = rng.normal(size=100), np.arange(100) % 5
    quantiles = np.tile([-0.2, -0.1, 0, 0.1, 0.2], (100, 1))
    before = cv.calibrate_out_of_fold(y, quantiles, of_row, on_one_device(y))
    y[of_row == 3] += 1000

    after = cv.calibrate_out_of_fold(y, quantiles, of_row, on_one_device(y))
    np.testing.assert_array_equal(before[of_row == 3], after[of_row == 3])
    assert (after[of_row == 1] != before[of_row == 1]).any()


def test_calibrated_intervals_have_their_nominal_coverage():
    rng = np.random.default_rng(1)
    y, of_row = rng.standard_t(4, size=2000), np.arange(2000) % 5
    quantiles = np.tile([-0.2, -0.1, 0, 0.1, 0.2], (2000, 1))
    found = cv.calibrate_out_of_fold(y, quantiles, of_row, on_one_device(y))

    assert 0.77 <= ((found[:, 1] <= y) & (y <= found[:, 3])).mean() <= 0.83
    assert 0.87 <= ((found[:, 0] <= y) & (y <= found[:, 4])).mean() <= 0.93


def covered(y, quantiles):
    return ((quantiles[:, 1] <= y) & (y <= quantiles[:, 3])).mean()


def test_coverage_holds_on_frequent_devices_and_overall_on_rare_ones():
    rng = np.random.default_rng(3)
    devices = np.repeat(np.array(["k80", "v100-16gb", "t4"], dtype=object), [1000, 1000, 50])
    y, of_row = rng.normal(size=2050), np.arange(2050) % 5
    y[devices == "v100-16gb"] *= 5  # whose errors are larger
    quantiles = np.tile([-0.2, -0.1, 0, 0.1, 0.2], (2050, 1))
    found = cv.calibrate_out_of_fold(y, quantiles, of_row, devices)
    of_all = cv.calibrate_out_of_fold(y, quantiles, of_row, on_one_device(y))

    for device in ("k80", "v100-16gb"):
        here = devices == device
        assert covered(y[here], found[here]) == pytest.approx(0.8, abs=0.03)
        assert abs(covered(y[here], of_all[here]) - 0.8) > 0.1
    np.testing.assert_array_equal(found[devices == "t4"], of_all[devices == "t4"])


@pytest.fixture
def two_devices():
    """Rows of a frequently and of a rarely measured device, and their features."""
    rng = np.random.default_rng(4)
    devices = np.repeat(np.array(["k80", "t4"], dtype=object), [400, 40])
    y = rng.normal(size=440) * np.where(devices == "k80", 1, 5)
    identity = np.where(devices[:, None] == "k80", [[3.7, 2.5]], [[7.5, 2.8]])
    raw = cv.ByDomain(np.tile([-0.2, -0.1, 0, 0.1, 0.2], (440, 1)), np.zeros(440, bool))
    return y, raw, np.arange(440) % 5, devices, identity


def test_a_release_contains_margins_of_frequently_measured_devices(two_devices):
    y, raw, of_row, devices, identity = two_devices
    shipped = cv.release_margins(y, raw, of_row, devices, identity, left_out(raw, devices))

    ((who, own),) = shipped.devices
    assert who == (3.7, 2.5)
    use = (devices == "k80") & (of_row != HELD_OUT_FOLD)
    assert own == cv.margins(y[use], raw.quantiles[use])
    assert own[0.1] < shipped.default[0.1]


def test_with_too_few_devices_a_new_one_widens_as_a_new_job_does(two_devices):
    y, raw, of_row, devices, identity = two_devices
    shipped = cv.release_margins(y, raw, of_row, devices, identity, left_out(raw, devices))

    assert shipped.novel["device"] == shipped.novel["job"]
    assert "release" not in shipped.novel


def test_intervals_of_a_device_with_few_rows_use_the_largest_margins(two_devices):
    y, raw, of_row, devices, identity = two_devices
    few = cv.ByDomain(raw.quantiles[:10], raw.is_new[:10])
    start = Margins({0.05: 1.0, 0.1: 0.5}, {"job": {0.05: 1.0, 0.1: 1.0}})
    shipped = cv.release_margins(
        y[:10], few, of_row[:10], devices[:10], identity[:10], left_out(few, devices[:10]), start
    )

    nothing = {0.05: 0.0, 0.1: 0.0}
    assert shipped == Margins({0.05: 2.0, 0.1: 1.5}, dict.fromkeys(NOVELTIES, nothing))


def left_out(raw, groups):
    """Return the forecasts by novelty where only jobs were left out by group."""
    return cv.left_out_groups({"family": raw}, {"group": groups})


def test_a_release_widens_intervals_by_what_groups_differ_by(two_devices):
    y, raw, of_row, devices, identity = two_devices
    shift = np.where(np.arange(440) % 11 < 5, 0.0, 30.0)  # further groups have other means
    groups = np.array([f"group {i % 11}" for i in range(440)], dtype=object)
    moved = cv.ByDomain(raw.quantiles - shift[:, None], raw.is_new)
    far = {"family": raw, "device": raw, "group": moved}
    shipped = cv.release_margins(
        y, raw, of_row, devices, identity,
        cv.left_out_groups(far, {"group": groups, "device": devices}),
    )  # fmt: skip

    assert shipped.novel.keys() == {"job", "device"}
    assert shipped.novel["job"][0.1] == pytest.approx(30, abs=5)
    assert shipped.novel["device"][0.1] < 10
    assert shipped.largest[0.1] == shipped.default[0.1] + shipped.novel["job"][0.1]


@pytest.mark.parametrize("kinds", [("rtx-3090", "v100-16gb"), ("a40", "a10g", "l4", "h200")])
def test_of_several_devices_some_are_held_out_and_some_remain(kinds):
    devices = np.repeat(np.array(kinds, dtype=object), 30)
    folds = cv.with_far_splits({}, {"device": devices}, np.ones(len(devices), bool))

    assert len(np.unique(folds["device"])) == len(kinds)
    assert cv.with_far_splits({}, {"device": devices[:30]}, np.ones(30, bool)) == {}
    lopsided = np.array([*["k80"] * 100, "t4", "p100"], dtype=object)
    assert cv.with_far_splits({}, {"device": lopsided}, np.ones(102, bool)) == {}


def test_the_error_of_too_few_calibration_rows_says_how_many_are_needed():
    with pytest.raises(TrainingError, match="needs 9 calibration rows"):
        cv.margins(np.zeros(5), np.zeros((5, 5)))
