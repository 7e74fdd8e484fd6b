"""Tests that outcomes reach the prediction service, also after it was unavailable."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

import presage
from presage.models.release.release import load_release
from presage.schedulers.live.client.client import ClusterClient
from presage.schedulers.v1 import cluster_pb2 as pb
from presage.serving.codec.wire_values import write_job
from presage.serving.outcomes.outcome_log import read_outcomes
from presage.serving.server_options import Options
from presage.serving.v1.prediction_pb2 import Outcome
from tests.schedulers.live.cluster import until
from tests.schedulers.live.controller.test_cluster_cli import Asking, process
from tests.serving.conftest import make_job
from tests.serving.support.processes import free_port
from tests.serving.support.running_server import start_server

RELEASE = Path(__file__).parents[3] / "data/pretrained/release"
SOURCE = str(Path(presage.__file__).parent.parent)
STEPS = """
import time
from presage import progress
run = progress.begin(400)
end_s = time.monotonic() + 8
for done in range(1, 401):
    while time.monotonic() < end_s - 8 * (1 - done / 400):
        pass
    run.step(done)
"""

pytestmark = pytest.mark.timeout(200)


@contextmanager
def service(port, log):
    with start_server(load_release(RELEASE), Options(port=port, outcomes=log)) as server:
        yield server


def test_outcomes_are_reported_once_the_service_is_available(tmp_path):
    service_port, port, log = free_port(), free_port(), tmp_path / "outcomes.db"
    up = (
        "up", "--port", str(port), "--state", str(tmp_path / "state"), "--predictor",
        f"127.0.0.1:{service_port}",
    )  # fmt: skip
    features = make_job("like this", iterations=400)
    jobs = [
        pb.Job(
            job_id=name, command=[sys.executable, "-c", STEPS if name == "steps" else "exit(3)"],
            iterations=400, features=write_job(features), environment={"PYTHONPATH": SOURCE},
        )
        for name in ("steps", "fails")
    ]  # fmt: skip
    with process(*up, log=tmp_path / "up.log"):
        Asking(f"127.0.0.1:{port}").until(lambda found: True)
        with ClusterClient(f"127.0.0.1:{port}") as client:
            client.submit(jobs)
            until(lambda: all(row.ended_unix_s for row in client.list(ended=True).jobs), 90.0)
        kept = tmp_path / "state" / "n0" / "outcomes"
        until(lambda: kept.is_dir() and len(list(kept.iterdir())) == 2)
        with service(service_port, log):
            until(lambda: not list(kept.iterdir()))

    rows = [Outcome.FromString(row.message) for row in read_outcomes(log)]
    reported = {row.idempotency_key.rpartition("/")[2]: row for row in rows}
    assert set(reported) == {"steps.1", "fails.1"}
    assert reported["fails.1"].failure == "crash"
    steps = reported["steps.1"]
    assert steps.job.job_id == "like this"
    assert steps.device.kind.startswith("cpu-")
    assert steps.share.fraction == 1.0
    assert 0.01 < steps.step_time_median_s < 0.1
    assert steps.runtime_s > 7.0
    assert steps.memory_peak_bytes > 2**20
    assert steps.compute_utilization > 0.1
