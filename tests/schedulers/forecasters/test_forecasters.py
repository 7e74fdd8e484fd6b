"""Contract of all forecasters."""

from __future__ import annotations

import math
import socket
from pathlib import Path
from random import Random

import pytest

from presage.errors import ServiceError
from presage.models.release.release import load_release
from presage.schedulers.core.cluster import Cluster, Node
from presage.schedulers.core.forecasts import Forecaster, Forecasts, RuntimePrediction
from presage.schedulers.forecasters.forecast_table import Table
from presage.schedulers.forecasters.no_forecasts import NoForecasts
from presage.schedulers.forecasters.noisy import Noisy
from presage.schedulers.forecasters.oracle import Oracle
from presage.schedulers.forecasters.predicted import Predicted
from presage.schedulers.forecasters.prediction_cache import MOST_RETRY_S, PredictionCache
from presage.schedulers.live.forecast_source import live_forecaster
from presage.schedulers.live.protocol.wire import (
    read_predictions,
    write_prediction,
)
from presage.schedulers.simulator.ground_truth.measured_truth import MeasuredTruth
from presage.schedulers.simulator.ground_truth.model_measurements import read_measurements
from presage.serving.client.client import PresageClient
from presage.serving.predictor.predictor import Predictor
from tests.schedulers.clusters import GIB, job

ROOT = Path(__file__).parents[3]
DEVICES = Cluster((Node("n0", 2, "cpu-2", 16 * GIB),))


@pytest.fixture(scope="module")
def zoo():
    return read_measurements(ROOT / "data/profiles/cpu-2-zoo")


@pytest.fixture(scope="module")
def jobs(zoo):
    models = zoo.models_on("cpu-2")[:9]
    return [
        job(str(i), model=model, features=zoo.features[model], iterations=100 * i)
        for i, model in enumerate([*models, *models[:3]])
    ]


def made(name: str, zoo, jobs) -> Forecaster:
    noisy, _, of = name.rpartition(" ")
    found: Forecaster = NoForecasts()
    if of == "oracle":
        ground_truth = MeasuredTruth({one.job_id: 50.0 for one in jobs}, zoo, "cpu-2")
        found = Oracle(ground_truth, DEVICES)
    elif of == "table":
        found = Table(zoo)
    elif of == "release":
        found = Predicted(Predictor(load_release(ROOT / "data/pretrained/release")))
    return Noisy(found, spread=0.4, seed=5) if noisy else found


# Oracles know only the jobs and kinds of their ground truth.
STRANGERS_TO_JOBS = ("none", "table", "release", "noisy release")


@pytest.fixture(scope="module", params=["oracle", "noisy oracle", *STRANGERS_TO_JOBS])
def forecaster(request, zoo, jobs):
    return made(request.param, zoo, jobs)


def test_there_is_one_response_per_request_in_any_order_and_co_location(forecaster, jobs):
    solo = [(one, "cpu-2") for one in jobs]
    pairs = [("cpu-2", (one, other)) for one in jobs[:5] for other in jobs[:5]]
    predictions, together = forecaster.predictions(solo), forecaster.slowdowns(pairs)
    assert (len(predictions), len(together)) == (len(solo), len(pairs))

    order = list(range(len(solo)))
    Random(1).shuffle(order)
    assert list(forecaster.predictions([solo[i] for i in order])) == [predictions[i] for i in order]
    for (_, members), slowdowns in zip(pairs, together, strict=True):
        assert slowdowns is None or len(slowdowns) == len(members)
        again = forecaster.slowdowns([("cpu-2", members[::-1])])[0]
        assert again is slowdowns is None or again[::-1] == pytest.approx(slowdowns)
    assert list(forecaster.predictions([])) == list(forecaster.slowdowns([])) == []


def test_speedups_are_1_as_requested_and_within_their_bounds(forecaster, jobs, request):
    forecasts = Forecasts(forecaster, DEVICES)
    for one in jobs:
        assert forecasts.speedup(one, "cpu-2", one.gpus, 1).median == pytest.approx(1.0)
        found = forecasts.speedup(one, "cpu-2", 2, 1)
        assert 0 < found.low <= found.median <= found.high < math.inf
        if "release" in request.node.callspec.id:
            assert 0.4 < found.median < 2.0
            assert found.low < found.median < found.high


def test_forecasts_carry_the_id_of_their_release(forecaster, jobs, request):
    name = request.node.callspec.params["forecaster"]
    of_release = load_release(ROOT / "data/pretrained/release").release_id
    forecasts = Forecasts(forecaster, DEVICES)
    sent = write_prediction("cpu-2", forecasts.prediction(jobs[0], "cpu-2"))

    assert sent.release_id == (of_release if name.endswith("release") else "")
    assert read_predictions([sent])["cpu-2"].release_id == sent.release_id


def test_jobs_of_one_equivalence_class_differ_only_in_run_time(forecaster, jobs):
    one, like_it = forecaster.predictions([(jobs[0], "cpu-2"), (jobs[9], "cpu-2")])
    assert (one is None) == (like_it is None)
    assert one is None or one[1:4] == like_it[1:4]


@pytest.mark.parametrize("kind", ["cpu-2", "no such kind"])
@pytest.mark.parametrize("name", STRANGERS_TO_JOBS)
def test_out_of_domain_jobs_get_no_forecast_or_a_valid_one(name, kind, zoo, jobs):
    unknown, forecaster = job("unknown"), made(name, zoo, jobs)
    predictions = Forecasts(forecaster, Cluster((Node("n0", 1, kind, GIB),)))
    predictions.expect([unknown])
    assert predictions.prediction(unknown, kind) == RuntimePrediction(math.inf, 1000, GIB)
    assert predictions.slowdowns([(kind, (unknown, unknown))]) == [(math.inf, math.inf)]
    assert predictions.missing == {kind: 1}


def test_without_a_service_every_job_gets_an_exclusive_device(jobs):
    with PresageClient("127.0.0.1:1", timeout_s=0.3) as client:
        with pytest.raises(ServiceError):
            client.device("cpu-2")
        predictions = Forecasts(Predicted(client), DEVICES)
        predictions.expect(jobs)
        assert {predictions.prediction(one, "cpu-2") for one in jobs} == {
            RuntimePrediction(math.inf, 1000, 16 * GIB)
        }
    ((why, times),) = predictions.failures.items()
    assert "127.0.0.1:1" in why
    assert times == 1  # asked once for all


class Down(NoForecasts):
    """Fails, but for one time."""

    def __init__(self, answers):
        self.requests, self._answers = 0, answers

    def predictions(self, requests):
        self.requests += 1
        if self.requests != self._answers:
            raise ServiceError("the service is down")
        return super().predictions(requests)


@pytest.mark.parametrize(("answers", "requests"), [(0, 3), (3, 6)])
def test_a_forecaster_that_fails_three_times_in_a_row_is_not_used_again(answers, requests):
    forecaster = Down(answers)
    predictions = Forecasts(forecaster, DEVICES)
    for number in range(20):
        assert predictions.runtime_s(job(str(number))) == math.inf
    assert forecaster.requests == requests


class Broken(NoForecasts):
    """Whose arithmetic fails."""

    def predictions(self, requests):
        return [RuntimePrediction(1.0, round(math.inf), 1) for _ in requests]


def test_a_forecaster_with_an_arithmetic_error_has_no_forecast():
    predictions = Forecasts(Broken(), DEVICES)
    assert predictions.prediction(job("1"), "cpu-2").runtime_s == math.inf
    assert list(predictions.failures.values()) == [1]


class Switched(NoForecasts):
    """Service that can be switched off, without forecasts."""

    there = False

    def predictions(self, requests):
        if not self.there:
            raise ServiceError("the service is down")
        return super().predictions(requests)


def test_a_failure_is_reported_until_the_forecaster_responds_again(monkeypatch):
    fresh = PredictionCache(Switched)
    assert fresh.failure == ""
    now_s = 0.0
    for number in range(5):
        forecasts = fresh.get(DEVICES, now_s)
        if number:  # no new request was sent yet
            assert fresh.failure == forecasts.failure == "the service is down"
        forecasts.runtime_s(job(str(number)))
        assert fresh.failure == "the service is down"
        now_s += MOST_RETRY_S + 1

    monkeypatch.setattr(Switched, "there", True)
    forecasts = fresh.get(DEVICES, now_s)
    assert fresh.failure == "the service is down"
    forecasts.runtime_s(job("last"))
    assert fresh.failure == forecasts.failure == ""


def test_an_unresponsive_service_is_reported_whatever_the_grpc_status(jobs):
    with socket.socket() as mute:  # takes connections, and never answers
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        silent = f"127.0.0.1:{mute.getsockname()[1]}"
        causes = {"127.0.0.1:1": "connection refused", silent: "something listens there"}
        for target, cause in causes.items():
            predictions = Forecasts(live_forecaster(target, 0.1, None, None)(), DEVICES)
            predictions.runtime_s(jobs[0])
            assert predictions.failure.startswith(f"no prediction service at {target}: {cause}")
