"""What each predictor learns, and from which columns: a measured value, transformed.

A scale (seconds, bytes) is learnt as the logarithm of its ratio to a prior that physics gives:
the roofline for time, the sum over holders for memory. The residual is small, has no unit, and
is what carries a predictor to models and devices it never saw. A fraction is learnt as its
log-odds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from presage.features.arrays import Matrix
from presage.features.columns.schema import COMMON, columns
from presage.features.graph.operator_time_shares import TIME_SHARE_COLUMNS
from presage.features.job.memory_components import MEMORY_COLUMNS

Vector = np.ndarray[Any, np.dtype[np.float64]]

LEAST_FRACTION = 2e-3  # as far as log-odds go
_OF_TIME = (
    "batch_size", "channels_last", "loads_data", "share", "roofline_s", "op_count",
    "bytes_per_op", "largest_input",
)  # fmt: skip
_OF_MEMORY = (
    "batch_size", "channels_last", "framework_release", "half_precision", "trains", "op_count",
    "peak_live_bytes", "memory_prior_bytes",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Target:
    """A predictor's target.

    ``prior`` is the column of the full set whose logarithm is subtracted, None to learn the
    scale itself; ``inputs`` are the columns that the network reads.
    """

    predictor: str
    column: str
    unit: str
    is_scale: bool
    prior: str | None
    inputs: tuple[str, ...]

    def to_learnt(self, values: Vector, features: Matrix) -> Vector:
        """Measured values of shape (rows,) -> what the network is fitted to."""
        if not self.is_scale:
            inside = np.clip(values, LEAST_FRACTION, 1 - LEAST_FRACTION)
            return np.log(inside / (1 - inside))
        return np.log(values) - self._log_prior(features)

    def to_measured(self, learnt: Vector, features: Matrix) -> Vector:
        """Network outputs of shape (rows, levels) -> the target's unit."""
        if not self.is_scale:
            return 1 / (1 + np.exp(-learnt))
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
            "compute_utilization", "compute_utilization", "fraction", is_scale=False, prior=None,
            inputs=tuple(column.name for column in COMMON),
        ),
        Target(
            "memory", "memory_peak_bytes", "bytes", is_scale=True, prior="memory_prior_bytes",
            inputs=(*_OF_MEMORY, *(column.name for column in MEMORY_COLUMNS)),
        ),
        Target(
            "step_time", "step_time_median_s", "seconds", is_scale=True, prior="roofline_s",
            inputs=(*_OF_TIME, *(column.name for column in TIME_SHARE_COLUMNS)),
        ),
    )
}  # fmt: skip
