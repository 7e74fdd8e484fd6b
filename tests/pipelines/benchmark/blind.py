"""Check that forecasts of held-out rows do not depend on the labels of these rows."""

import numpy as np

from presage.models.training.fit import LEVELS


def assert_blind(asked, before, after, other):
    """Assert that forecasts depend on other labels and not on those of the held-out rows."""
    first, second, third = (
        {"mlp": one.quantiles[:, LEVELS.index(0.5)], **one.baselines}
        for one in (before, after, other)
    )
    for name in first:
        np.testing.assert_array_equal(first[name][asked], second[name][asked], err_msg=name)
        assert (first[name][asked] != third[name][asked]).any(), name
