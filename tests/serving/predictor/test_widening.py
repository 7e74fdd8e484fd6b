import numpy as np

from presage.serving.predictor.widening import widen, widening_factors, widening_table
from tests.serving.conftest import LEVELS


def test_margins_widen_in_logarithms_or_log_odds():
    factors = widening_factors({0.1: np.log(2)}, LEVELS)
    scale = widen(np.array([[1.0, 2.0, 4.0, 8.0, 16.0]]), factors, 2, odds=False)
    share = widen(np.array([[0.1, 0.2, 0.5, 0.8, 0.9]]), factors, 2, odds=True)

    np.testing.assert_allclose(scale, [[1, 1, 4, 16, 16]])
    np.testing.assert_allclose(share, [[0.1, 1 / 9, 0.5, 8 / 9, 0.9]])


def test_an_outer_interval_contains_the_inner_one_despite_a_smaller_margin():
    quantiles = np.array([[1.0, 2.0, 4.0, 8.0, 9.0]])
    factors = widening_factors({0.05: 0.1, 0.1: np.log(4)}, LEVELS)
    moved = widen(quantiles, factors, 2, odds=False)

    np.testing.assert_allclose(moved, [[0.5, 0.5, 4, 32, 32]])


def test_of_several_novelties_the_largest_margin_counts():
    margins = {"job": {"gpu": {0.1: 0.3}}, "device": {"gpu": {0.1: 0.4}}, "release": {}}
    table = widening_table(margins, "gpu", LEVELS)

    assert table.shape == (8, len(LEVELS))
    upper = np.log(table[:, LEVELS.index(0.9)])
    # Codes: nothing, job, device, both, and the same with a new release, which has no margin.
    np.testing.assert_allclose(upper, [0, 0.3, 0.4, 0.4] * 2, atol=1e-12)
    np.testing.assert_allclose(table[:, LEVELS.index(0.1)] * table[:, LEVELS.index(0.9)], 1)
