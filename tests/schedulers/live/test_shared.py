"""Tests of a cluster whose jobs share a device by the forecasts of a release."""

from __future__ import annotations

import json
import subprocess

import pytest

from presage.cli.options.job_source import read_job
from presage.features.device.device import find_device
from presage.models.release.release import load_release
from presage.schedulers.core.job import Job
from presage.schedulers.forecasters.predicted import Predicted
from presage.schedulers.v1 import cluster_pb2 as pb
from presage.serving.predictor.predictor import Predictor
from tests.schedulers.live.cluster import PRESAGE, ROOT, until

RELEASE = ROOT / "data/pretrained/release"
KIND, MODEL, ITERATIONS = "rtx-3090", "examples.my_model:classifier", 4_000_000
GIB = find_device(KIND).memory_bytes / 2**30


def predict(iterations=ITERATIONS):
    """Return the prediction of the release, without a cluster."""
    features = read_job(MODEL, batch_size=32, iterations=iterations)
    job = Job("job", 0.0, iterations=iterations, features=features)
    (prediction,) = Predicted(Predictor(load_release(RELEASE))).predictions([(job, KIND)])
    return prediction


def test_n3_the_predicted_remaining_time_is_that_of_the_remaining_iterations():
    whole, rest = predict(100), predict(40)

    assert whole.remaining_s(0.6) == pytest.approx(rest.runtime_s - rest.setup_s)


@pytest.mark.timeout(200)
def test_jobs_with_features_share_a_device_by_their_forecasts(cluster):
    cluster.controller("--predictor", RELEASE)
    cluster.agent("n0", "--memory-gib", GIB, "--predictor", RELEASE, kind=KIND)
    cluster.connected("n0")

    def run_command(command, *words):
        done = subprocess.run(
            [*PRESAGE, command, "--controller", cluster.target, *words], cwd=ROOT, timeout=120,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    for name, more in (("one", ("--latency-sensitive",)), ("two", ())):
        run_command(
            "submit", "--name", name, "--features", MODEL, "--batch-size", "32", "--iterations",
            str(ITERATIONS), *more, "--", "/bin/sleep", "600",
        )  # fmt: skip
    until(lambda: set(cluster.phases().values()) == {pb.RUNNING}, what="both run")

    prediction = predict()
    rows = {row.job.job_id: row for row in cluster.all().jobs}
    assert {row.allocations[0].device for row in rows.values()} == {0}
    assert rows["two"].allocations[0].compute_milli == prediction.compute_milli < 500
    (received,) = rows["one"].predictions
    assert (received.compute_milli, received.memory_bytes) == (
        prediction.compute_milli,
        prediction.memory_bytes,
    )
    assert received.slo_s == pytest.approx(prediction.slo_s)
    assert received.release_id == load_release(RELEASE).release_id
    share = f"{prediction.compute_milli / 10:g} %"
    words = " ".join(run_command("explain", "two").split())
    assert f"two: it runs on node n0 with {share} of device 0, attempt 1" in words
    assert f"; when it was placed, no other node had free capacity for {share} and" in words
    assert "forecasts" in words
    found = json.loads(run_command("explain", "one", "--json"))
    assert found["status"]["predictions"][0]["is_predicted"]
    cluster.cancel("one", "two")
    cluster.over("one", "two")
