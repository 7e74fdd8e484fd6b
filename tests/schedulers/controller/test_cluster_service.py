"""What the service refuses before anything of it is known to the controller."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from presage.features.errors import InvalidRequestError
from presage.schedulers.controller.cluster_service import ClusterService
from presage.schedulers.live.wire import MOST_JOB_BYTES
from presage.schedulers.v1 import cluster_pb2 as pb


def test_a_job_that_is_too_large_to_travel_is_refused_by_its_name():
    nobody: Any = None
    service = ClusterService(nobody, nobody, nobody, "fifo")
    large = pb.Job(job_id="large", command=["train"], environment={"DATA": "x" * MOST_JOB_BYTES})
    request = pb.SubmitRequest(jobs=[pb.Job(job_id="small", command=["train"]), large])

    with pytest.raises(InvalidRequestError, match=r"job 'large' has .* into files"):
        asyncio.run(service.submit(request.SerializeToString(), nobody))
