"""How far forecasts of the served release were from what came."""

from __future__ import annotations

from collections.abc import Sequence

from presage.serving.outcomes.judged import Judge
from presage.serving.predictor.predictor import Predictor
from presage.serving.server.prometheus_metrics import Metrics
from presage.serving.v1 import prediction_pb2 as pb


def count_outcomes(outcomes: Sequence[pb.Outcome], predictor: Predictor, metrics: Metrics) -> None:
    """Count what jobs measured against what the release foretells of them.

    Outcomes must have been checked. Those of failed jobs tell nothing about a forecast, and those
    of jobs that had neighbours only where the same report tells of them alone.
    """
    for outcome in Judge(predictor).judged(outcomes):
        for judged in outcome:
            if not judged.in_domain:
                continue
            inside = str(judged.low <= judged.measured <= judged.high).lower()
            metrics.outcome_inside.labels(judged.quantity, inside).inc()
            if judged.median > 0:
                ratio = judged.measured / judged.median
                metrics.outcome_ratio.labels(judged.quantity).observe(ratio)
