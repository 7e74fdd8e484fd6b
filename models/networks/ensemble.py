"""Combination of an ensemble's members: their mean, widened by their disagreement.

Networks trained on the same rows differ most where these rows are least informative. The distance
between their medians ranks future errors better than the width of their own intervals does, so it
widens the intervals. Calibration then corrects the widths overall (decision 13).
"""

from __future__ import annotations

import torch
from torch import Tensor

from presage.models.training.fit import LEVELS
from presage.system.arrays import Array

DISAGREEMENT_SCALE = 2.0  # standard deviations of the members' medians
# Direction, per level, in which a quantile moves away from the median.
_SIGNS = torch.tensor([float((level > 0.5) - (level < 0.5)) for level in LEVELS])


def combine_members(outputs: Tensor) -> Tensor:
    """Return quantiles (..., levels) of members (members, ..., levels).

    They do not decrease along the levels if those of the members do not.
    """
    mean = outputs.mean(0)
    if len(outputs) == 1:
        return mean
    medians = outputs[..., LEVELS.index(0.5)]
    squares = ((medians - medians.mean(0)) ** 2).sum(0) / (len(outputs) - 1)
    return mean + DISAGREEMENT_SCALE * squares.sqrt()[..., None] * _SIGNS


def combine_member_arrays(outputs: Array) -> Array:
    """Return :func:`combine_members` of NumPy arrays."""
    out: Array = combine_members(torch.from_numpy(outputs)).numpy()
    return out
