"""Predicted speed-ups of forecasters."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from presage.errors import MissingMethodError
from presage.features.scaling.scaling_law import DEFAULT_LAW
from presage.schedulers.core.forecasts import Forecasts
from presage.schedulers.core.speedup import Speedup, SpeedupRequest, clean_speedup, fewest_nodes
from presage.schedulers.forecasters.no_forecasts import NoForecasts
from presage.schedulers.forecasters.noisy import Noisy
from presage.schedulers.forecasters.oracle import Oracle
from presage.schedulers.forecasters.predicted import Predicted
from presage.schedulers.simulator.ground_truth.ground_truth import TraceDurations
from presage.serving.predictor.predictor import Predictor
from tests.schedulers.clusters import cluster, job
from tests.serving.conftest import make_job, make_release


def test_without_a_forecast_devices_speed_nothing_up():
    one = job("a", gpus=4, max_gpus=8)
    for missing in (None, Speedup(math.nan, 1.0, 1.0), Speedup(-1.0, 1.0, 1.0)):
        assert clean_speedup(missing, one, 8) == Speedup(1.0, 1.0, 1.0)
        assert clean_speedup(missing, one, 1) == Speedup(0.25, 0.25, 1.0)
    assert Forecasts(NoForecasts(), cluster(8)).speedup(one, "v100", 8, 1).median == 1.0


def test_an_oracle_predicts_the_true_speedup():
    one = job("a", gpus=2)
    oracle = Oracle(TraceDurations({"a": 60.0}), cluster(4))
    for forecaster in (oracle, Noisy(oracle, spread=0.5)):
        assert Forecasts(forecaster, cluster(4)).speedup(one, "v100", 4, 1).median == 2.0
    assert Noisy(NoForecasts(), spread=0.5).speedups([SpeedupRequest(one, "v100", 4, 1, 1)]) == [
        None
    ]


def test_the_fewest_nodes_hold_a_gang():
    assert [fewest_nodes(gpus, 4) for gpus in (1, 4, 5, 8, 9)] == [1, 1, 2, 2, 3]


# The service ----------------------------------------------------------------------------------


class OldServer:
    """Predictor of a service without the call for scaling."""

    def __init__(self, release):
        self._predictor = Predictor(release)
        self.calls = 0

    def __getattr__(self, name):
        return getattr(self._predictor, name)

    def predict_scaling(self, request, *, coverage):
        self.calls += 1
        raise MissingMethodError("localhost:1 does not support this call (); update the server")


def sizes_of(forecaster, trained, sizes):
    return forecaster.speedups(
        [SpeedupRequest(trained, "cpu-2", gpus, nodes, 1) for gpus, nodes in sizes]
    )


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    return make_release(tmp_path_factory.mktemp("release") / "release")


@pytest.fixture(scope="module")
def trained():
    return job("a", gpus=2, max_gpus=8, features=make_job("a", batch_size=64), iterations=10)


def test_a_service_without_the_call_is_replaced_by_the_built_in_law(release, trained):
    old, sizes = OldServer(release), [(1, 1), (2, 1), (4, 2)]
    fallback = Predicted(old)
    found = sizes_of(fallback, trained, sizes)
    sizes_of(fallback, trained, [(8, 2)])

    assert old.calls == 1
    assert found == sizes_of(Predicted(Predictor(release)), trained, sizes)
    assert found[1] == Speedup(1.0, 1.0, 1.0, found[1].sync_share)


def test_sizes_of_a_job_are_predicted_in_one_call_and_once(release, trained):
    predictor = Predictor(release)
    asked = []

    class Counted(OldServer):
        def predict_scaling(self, request, *, coverage):
            asked.append(len(request.placements))
            return predictor.predict_scaling(request, coverage=coverage)

    forecasts = Forecasts(Predicted(Counted(release)), cluster(4, 4, kind="cpu-2"))
    sizes = [(gpus, -(-gpus // 4)) for gpus in range(1, 9)]
    first = forecasts.speedups(trained, "cpu-2", sizes)

    assert forecasts.speedups(trained, "cpu-2", sizes[::-1]) == first[::-1]
    assert asked == [8]


def test_a_law_of_the_caller_is_applied_in_this_process(release, trained):
    old = OldServer(release)
    slow = replace(DEFAULT_LAW, bytes_per_s=(1e3, 1e3, 1e3))
    (found,) = sizes_of(Predicted(old, law=slow), trained, [(4, 1)])

    assert old.calls == 0
    assert found.median < 1.0


def test_no_speedup_is_known_without_features_or_device(release, trained):
    forecaster = Predicted(Predictor(release))

    assert sizes_of(forecaster, job("b", gpus=2), [(4, 1)]) == [None]
    assert forecaster.speedups([SpeedupRequest(trained, "no-such-kind", 4, 1, 1)]) == [None]


def test_a_release_serves_its_own_law(tmp_path, trained):
    slow = replace(DEFAULT_LAW, bytes_per_s=(1e3, 1e3, 1e3))
    own = make_release(tmp_path / "release", scaling_law=slow)

    assert own.scaling_law == slow
    (found,) = sizes_of(Predicted(Predictor(own)), trained, [(4, 1)])
    assert found.median < 1.0
