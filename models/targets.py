"""What each predictor learns: a measured column, seen through a transformation.

A scale (seconds, bytes) is learnt as the logarithm of its ratio to a prior that physics gives:
the roofline for time, live tensors plus context for memory. The residual is small, has no unit,
and is what carries a predictor to devices it never saw.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from presage.features.schema import Matrix, columns

Vector = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True, slots=True)
class Target:
    """A predictor's target.

    A scale is learnt in logarithms; ``prior`` is the feature column whose logarithm is
    subtracted, None to learn the scale itself.
    """

    predictor: str
    column: str
    unit: str
    is_scale: bool
    prior: str | None

    def to_learnt(self, values: Vector, features: Matrix) -> Vector:
        """Measured values of shape (rows,) -> what the network is fitted to."""
        return np.log(values) - self._log_prior(features) if self.is_scale else values

    def to_measured(self, learnt: Vector, features: Matrix) -> Vector:
        """Network outputs of shape (rows, levels) -> the target's unit."""
        if not self.is_scale:
            return np.clip(learnt, 0, 1)
        measured: Vector = np.exp(learnt + self._log_prior(features)[:, None])
        return measured

    def _log_prior(self, features: Matrix) -> Vector:
        if self.prior is None:
            return np.zeros(len(features))
        return np.log(features[:, columns("full").index(self.prior)])


TARGETS = {
    target.predictor: target
    for target in (
        Target(
            "compute_utilization", "compute_utilization", "fraction", is_scale=False, prior=None
        ),
        Target("memory", "memory_peak_bytes", "bytes", is_scale=True, prior="memory_prior_bytes"),
        Target("step_time", "step_time_median_s", "seconds", is_scale=True, prior="roofline_s"),
    )
}
