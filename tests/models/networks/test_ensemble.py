import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from presage.models.networks.ensemble import DISAGREEMENT_SCALE, combine_member_arrays
from presage.models.training.fit import LEVELS

MEDIAN = LEVELS.index(0.5)


def members(*medians, width=1.0):
    """Return outputs of networks with these medians and equal interval widths."""
    steps = width * (np.arange(len(LEVELS)) - MEDIAN)
    return np.array(medians)[:, None, None] + steps[None, None]


def test_equal_members_give_the_quantiles_of_each():
    np.testing.assert_allclose(combine_member_arrays(members(3.0, 3.0)), members(3.0)[0])
    np.testing.assert_allclose(combine_member_arrays(members(3.0)), members(3.0)[0])


def test_disagreement_widens_intervals():
    (quantiles,) = combine_member_arrays(members(1.0, 2.0, 3.0))  # a standard deviation of 1

    assert quantiles[MEDIAN] == 2
    assert quantiles[-1] - quantiles[MEDIAN] == pytest.approx(2 + DISAGREEMENT_SCALE)
    assert quantiles[MEDIAN] - quantiles[0] == pytest.approx(2 + DISAGREEMENT_SCALE)


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=6), st.floats(0, 3))
def test_combined_quantiles_never_cross(medians, width):
    one, other = (
        combine_member_arrays(members(*order, width=width)) for order in (medians, medians[::-1])
    )

    assert (np.diff(one, axis=-1) >= -1e-9).all()
    np.testing.assert_allclose(one, other, atol=1e-9)
