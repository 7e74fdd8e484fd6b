"""Text that says whether a job meets its SLO."""

from __future__ import annotations

import math

from presage.schedulers.v1 import cluster_pb2 as pb

_STARTED = (pb.RUNNING, pb.PAUSED, pb.LEAVING, pb.FINISHED)


def slo_text(row: pb.JobStatus, kind: str = "") -> str:
    """Return "SLO met", "SLO violated" or "no SLO" for a latency-sensitive job that has started.

    Returns "" for any other job. ``kind`` is the kind of its device, if it is known.
    """
    if not row.job.latency_sensitive or row.phase not in _STARTED or not row.started_unix_s:
        return ""
    if row.slo_violated:
        return "SLO violated"
    predictions = [
        prediction for prediction in row.predictions if prediction.kind == kind
    ] or row.predictions
    has_slo = any(math.isfinite(prediction.slo_s) for prediction in predictions)
    return "SLO met" if has_slo else "no SLO"
