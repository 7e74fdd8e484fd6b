"""How far forecasts of the served release were from what came: the first sign of drift."""

from __future__ import annotations

from collections.abc import Sequence

from presage.features.device import Share
from presage.features.placement import Placement
from presage.serving.forecasts import JobForecast
from presage.serving.metrics import Metrics
from presage.serving.predictor import Predictor
from presage.serving.v1 import prediction_pb2 as pb
from presage.serving.wire import read_device, read_job, read_share

# Fields of an outcome by the quantity of the forecast that they answer.
_MEASURED = {
    "compute_utilization": "compute_utilization",
    "memory_bytes": "memory_peak_bytes",
    "step_time_s": "step_time_median_s",
    "runtime_s": "runtime_s",
}


def count_outcomes(outcomes: Sequence[pb.Outcome], predictor: Predictor, metrics: Metrics) -> None:
    """Count what jobs alone on their devices measured against what the release foretells of them.

    Outcomes must have been checked. Those of failed jobs, and of jobs that had neighbours, tell
    nothing about a forecast of a job alone.
    """
    alone = [row for row in outcomes if not row.failure and not row.neighbours]
    placements = [
        Placement(
            read_job(row.job, "job"),
            read_device(row.device, predictor.known_device, "device"),
            read_share(row, "outcome") if row.HasField("share") else Share(),
        )
        for row in alone
    ]
    for outcome, forecast in zip(alone, predictor.predict(placements), strict=True):
        _count(outcome, forecast, metrics)


def _count(outcome: pb.Outcome, forecast: JobForecast, metrics: Metrics) -> None:
    for quantity, field in _MEASURED.items():
        expected = getattr(forecast, quantity)
        if not (outcome.HasField(field) and expected.in_domain):
            continue
        measured = float(getattr(outcome, field))
        inside = expected.low <= measured <= expected.high
        metrics.outcome_inside.labels(quantity, str(inside).lower()).inc()
        if expected.median > 0:
            metrics.outcome_ratio.labels(quantity).observe(measured / expected.median)
