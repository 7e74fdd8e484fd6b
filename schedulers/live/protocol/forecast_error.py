"""Error of a predicted run time, against the measured one of a job that finished."""

from __future__ import annotations

import math
from typing import NamedTuple

from presage.schedulers.v1 import cluster_pb2 as pb


class ForecastError(NamedTuple):
    """Predicted and measured run time of a job, in seconds.

    Attributes
    ----------
    bound_s : float
        Upper bound of the prediction; may be infinite.
    """

    predicted_s: float
    bound_s: float
    measured_s: float

    @property
    def relative(self) -> float:
        """Error relative to the measured run time: 0.1 if the prediction was 10 % too long."""
        return self.predicted_s / self.measured_s - 1.0

    @property
    def exceeds_bound(self) -> bool:
        """Whether the job took longer than the upper bound."""
        return self.measured_s > self.bound_s


def forecast_error(prediction: pb.Prediction | None, measured_s: float) -> ForecastError | None:
    """Return the error of a prediction; None without a forecast or a measured run time.

    Parameters
    ----------
    prediction : Prediction or None
        That of the kind of device on which the job ran.
    measured_s : float
        Time from its start to its end, in its only attempt: it contains slowdowns by co-located
        jobs, and pauses.
    """
    if prediction is None or not prediction.is_predicted:
        return None
    is_known = math.isfinite(prediction.runtime_s) and prediction.runtime_s > 0
    if not is_known or not measured_s > 0:
        return None
    return ForecastError(prediction.runtime_s, prediction.slo_s, measured_s)
