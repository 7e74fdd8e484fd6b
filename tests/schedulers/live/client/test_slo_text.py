"""Tests of the SLO text of a job."""

from __future__ import annotations

import math

import pytest

from presage.schedulers.live.client.slo_text import slo_text
from presage.schedulers.v1 import cluster_pb2 as pb


def row(phase: pb.Phase, slo_s: float, *, late: bool = False) -> pb.JobStatus:
    job = pb.Job(latency_sensitive=True)
    prediction = [pb.Prediction(kind="v100", slo_s=slo_s)]
    return pb.JobStatus(
        job=job, phase=phase, predictions=prediction, started_unix_s=1.0, slo_violated=late
    )


@pytest.mark.parametrize(
    ("status", "word"),
    [
        (row(pb.RUNNING, 120.0), "SLO met"),
        (row(pb.FINISHED, 120.0), "SLO met"),
        (row(pb.FINISHED, 120.0, late=True), "SLO violated"),
        (row(pb.PAUSED, math.inf), "no SLO"),
        (row(pb.FINISHED, math.inf), "no SLO"),
        (row(pb.WAITING, 120.0), ""),
        (pb.JobStatus(phase=pb.RUNNING, started_unix_s=1.0), ""),
    ],
)
def test_slo_text_of_a_latency_sensitive_job(status, word):
    assert slo_text(status) == word
