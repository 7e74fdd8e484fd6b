"""Whether forecasts of left-out rows know what these rows were measured at."""

import numpy as np

from presage.models.training.fit import LEVELS


def assert_blind(asked, before, after, other):
    """Answers once the labels asked about change stay as they were; once others do, they do not."""
    first, second, third = (
        {"mlp": one.quantiles[:, LEVELS.index(0.5)], **one.baselines}
        for one in (before, after, other)
    )
    for name in first:
        np.testing.assert_array_equal(first[name][asked], second[name][asked], err_msg=name)
        assert (first[name][asked] != third[name][asked]).any(), name
