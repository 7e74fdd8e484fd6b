"""Server with HTTP/JSON, and a gRPC stub of the same server."""

from __future__ import annotations

import grpc
import pytest

from presage.serving.codec import wire_values
from presage.serving.server_options import Options
from presage.serving.v1 import prediction_pb2 as pb
from presage.serving.v1 import prediction_pb2_grpc as pb_grpc
from tests.serving.support.running_server import start_server


@pytest.fixture(scope="package")
def rest(release, tmp_path_factory):
    """Server with an outcome log, on free ports."""
    outcomes = tmp_path_factory.mktemp("outcomes") / "log.db"
    with start_server(release, Options(port=0, http_port=0, outcomes=outcomes)) as running:
        yield running


@pytest.fixture(scope="package")
def stub(rest):
    with grpc.insecure_channel(rest.target) as channel:
        yield pb_grpc.PredictionServiceStub(channel)


@pytest.fixture(scope="session")
def predict_request(job):
    """Function that returns a request of some jobs on two devices."""

    def make(jobs: int = 2) -> pb.PredictRequest:
        return pb.PredictRequest(
            jobs=[wire_values.write_job(job(f"job-{i}")) for i in range(jobs)],
            devices=[pb.Device(kind="cpu-2"), pb.Device(kind="v100")],
        )

    return make
