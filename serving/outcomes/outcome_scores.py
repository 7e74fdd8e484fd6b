"""Metrics of the errors between forecasts of the served release and reported outcomes."""

from __future__ import annotations

from collections.abc import Sequence

from presage.serving.outcomes.judged import Judge
from presage.serving.predictor.predictor import Predictor
from presage.serving.server.prometheus_metrics import Metrics
from presage.serving.v1 import prediction_pb2 as pb


def count_outcomes(outcomes: Sequence[pb.Outcome], predictor: Predictor, metrics: Metrics) -> None:
    """Count reported outcomes against the forecasts of a release.

    Outcomes must have been checked. Failed jobs are skipped. Co-located jobs are skipped unless the
    same report contains a solo outcome of the job.
    """
    for outcome in Judge(predictor).judge(outcomes):
        for judged in outcome:
            if not judged.in_domain:
                continue
            inside = str(judged.low <= judged.measured <= judged.high).lower()
            metrics.outcome_inside.labels(judged.quantity, inside).inc()
            if judged.median > 0:
                ratio = judged.measured / judged.median
                metrics.outcome_ratio.labels(judged.quantity).observe(ratio)
