import numpy as np
import pytest

from presage.models.training import baselines
from presage.models.training.baselines import (
    BASELINES,
    MEAN_BY_MEMBERS,
    MeanByMembers,
    predict_out_of_fold,
)


def data():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 4))
    return x, 3 * x[:, 0] + 0.01 * rng.normal(size=200), np.arange(200) % 5


def test_the_constant_is_the_median_of_the_other_folds():
    y = np.array([1.0, 2.0, 9.0, 100.0])
    found = predict_out_of_fold("constant", np.zeros((4, 1)), y, np.array([0, 0, 0, 1]))

    assert found.tolist() == [100, 100, 100, 2]


@pytest.mark.parametrize("name", ["linear", "boosted_trees"])
def test_baselines_learn_a_line(name):
    x, y, folds = data()

    assert (
        np.abs(predict_out_of_fold(name, x, y, folds) - y).mean()
        < np.abs(y - np.median(y)).mean() / 3
    )


@pytest.mark.parametrize("name", BASELINES)
def test_a_fold_is_predicted_without_its_own_rows(name):
    x, y, folds = data()
    spoiled = np.where(folds == 2, 1e6, y)

    first, second = (
        predict_out_of_fold(name, x, values, folds)[folds == 2] for values in (y, spoiled)
    )
    np.testing.assert_array_equal(first, second)


def test_further_rows_can_be_hidden():
    y = np.array([1.0, 2.0, 9.0])
    hidden = np.array([[True, False], [True, False], [False, True]])
    found = predict_out_of_fold("constant", np.zeros((3, 1)), y, np.array([0, 1, 1]), hidden)

    assert found.tolist() == [9, 1.5, 1.5]


def test_slowdowns_have_a_mean_by_the_number_of_members():
    members = np.array([[2.0], [2.0], [4.0], [4.0]])
    model = MeanByMembers().fit(members, np.array([1.0, 3.0, 5.0, 7.0]))

    assert model.predict(np.array([[2.0], [3.0], [4.0], [9.0]])).tolist() == [2, 2, 6, 6]


def test_the_mean_by_members_is_that_of_the_other_folds():
    members, y = np.array([[2.0], [2.0], [3.0]]), np.array([1.0, 2.0, 9.0])

    found = predict_out_of_fold(MEAN_BY_MEMBERS, members, y, np.array([0, 1, 1]))

    assert found.tolist() == [2, 1, 1]


def test_a_baseline_is_trained_on_evenly_spaced_rows_of_a_large_table(monkeypatch):
    monkeypatch.setattr(baselines, "MOST_ROWS", 3)
    y = np.array([0.0, *range(1, 8)])  # 7 rows besides the first: every third is read
    found = predict_out_of_fold("constant", np.zeros((8, 1)), y, np.array([0, *[1] * 7]))

    assert found.tolist() == [4.0, *[0.0] * 7]  # the median of 1, 4 and 7


def test_trees_of_processes_forecast_the_same(monkeypatch):
    rng = np.random.default_rng(0)
    x, folds = rng.normal(size=(60, 3)), np.arange(60) % 3
    y = x @ [1.0, -2.0, 0.5] + rng.normal(size=60)

    here = predict_out_of_fold("boosted_trees", x, y, folds)
    monkeypatch.setattr(baselines, "LONG_ROWS", 60)
    in_processes = predict_out_of_fold("boosted_trees", x, y, folds)

    assert here.tobytes() == in_processes.tobytes()
