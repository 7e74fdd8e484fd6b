"""What an ensemble says: the mean of its members, and in doubt by as much as they differ.

Networks that saw the same rows differ most where those rows tell least. The distance between
their medians ranks the errors to come better than the width of their own intervals does, so it
widens these; calibration then makes the widths right on the whole (decision 9).
"""

from __future__ import annotations

import torch
from torch import Tensor

from presage.models.training.fit import LEVELS
from presage.system.arrays import Array

DOUBT = 2.0  # standard deviations of the members' medians
# By level: towards which side of the median a quantile is moved.
_SIDE = torch.tensor([float((level > 0.5) - (level < 0.5)) for level in LEVELS])


def combined(outputs: Tensor) -> Tensor:
    """Quantiles (members, ..., levels) -> (..., levels), not decreasing if theirs are not."""
    mean = outputs.mean(0)
    if len(outputs) == 1:
        return mean
    medians = outputs[..., LEVELS.index(0.5)]
    squares = ((medians - medians.mean(0)) ** 2).sum(0) / (len(outputs) - 1)
    return mean + DOUBT * squares.sqrt()[..., None] * _SIDE


def combined_array(outputs: Array) -> Array:
    """The same, of arrays."""
    out: Array = combined(torch.from_numpy(outputs)).numpy()
    return out
