"""Resources of trials by the pretrained release, and by a real server."""

from __future__ import annotations

import math
import pickle
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from presage.errors import ConfigError, GraphError, InvalidJobError, UnknownDeviceError
from presage.models.release.pretrained import pretrained_release
from presage.ray import TrialResources, resources
from presage.serving.predictor.predictor import load_predictor
from tests.schedulers.clusters import GIB
from tests.schedulers.ray.trials import TRIAL, WAITING
from tests.serving.support.processes import serving
from tests.support.ray_driver import run_ray_driver

RELEASE = pretrained_release()
needs_ray = pytest.mark.skipif(
    find_spec("ray") is None, reason="Ray is not installed: pip install presage[ray]"
)


@pytest.fixture(scope="module")
def predictor():
    return load_predictor(RELEASE)


class Altered:
    """Predictor whose answers are altered."""

    def __init__(self, predictor, **altered):
        self._predictor, self._altered = predictor, altered

    def __getattr__(self, name):
        return getattr(self._predictor, name)

    def predict(self, placements, *, coverage):
        return [
            replace(one, **{name: alter(getattr(one, name)) for name, alter in self.solo.items()})
            for one in self._predictor.predict(placements, coverage=coverage)
        ]

    def predict_interference(self, colocations, *, coverage):
        alter = self._altered.get("slowdowns", lambda one: one)
        return [
            replace(one, slowdowns=tuple(map(alter, one.slowdowns)))
            for one in self._predictor.predict_interference(colocations, coverage=coverage)
        ]

    @property
    def solo(self):
        return {name: alter for name, alter in self._altered.items() if name != "slowdowns"}


def asked(source, **options):
    return resources(TRIAL, **{"predictor": source, "device": "cpu-2", **options})


def test_a_trial_that_computes_all_the_time_has_the_processors_of_a_node(predictor):
    found = asked(predictor)

    assert found == {"CPU": 2.0, "memory": found.sharing.memory_bytes}
    assert (found.trials_per_device, found.speedup) == (1, 1.0)
    assert "2 are predicted to use" in found.reason


def test_trials_that_wait_for_their_samples_share_a_node(predictor):
    found = asked(predictor, loading=WAITING)

    assert found.trials_per_device == 3
    assert found["CPU"] == 0.6666  # three of them are less than two processors
    assert found.speedup > 1.4
    assert found.remote_options() == {"num_cpus": 0.6666, "num_gpus": 0, "memory": found["memory"]}


def test_the_memory_is_the_bound_at_the_risk_and_that_of_a_worker_of_ray(predictor):
    none = {"loading": WAITING, "process_bytes": 0}
    likely, unlikely = (asked(predictor, risk=risk, **none)["memory"] for risk in (0.1, 0.05))
    median = asked(predictor, risk=0.5, **none)["memory"]

    assert median < likely < unlikely
    assert asked(predictor, risk=0.07, **none)["memory"] == unlikely  # the next that is calibrated
    assert asked(predictor, risk=0.05, loading=WAITING)["memory"] > unlikely


def test_less_memory_of_the_nodes_means_fewer_trials(predictor):
    found = asked(predictor, loading=WAITING, device_memory_bytes=GIB)

    assert found.trials_per_device == 2
    assert "3 may need" in found.reason


def test_a_trial_that_needs_more_memory_than_any_device_has_a_whole_one_and_the_reason(predictor):
    found = asked(predictor, loading=WAITING, device_memory_bytes=GIB // 4)

    assert found == {"CPU": 2.0}
    assert "and the device has 0.25 GiB" in found.reason


def test_a_custom_resource_counts_devices(predictor):
    found = asked(predictor, loading=WAITING, device_resource="slot", most_trials=2)

    assert found == {"slot": 0.5, "memory": found.sharing.memory_bytes}
    assert found.remote_options()["resources"] == {"slot": 0.5}
    assert found.remote_options()["num_cpus"] == 0


def test_a_gpu_outside_the_training_data_is_a_whole_one_with_a_processor(predictor):
    found = asked(predictor, device="a100-80gb")

    assert found == {"GPU": 1.0, "CPU": 1.0}
    assert f"outside the training data of release {predictor.release().release_id}" in found.reason
    assert asked(predictor, device="a100-80gb", cpus=0) == {"GPU": 1.0}


def test_trials_on_a_gpu_in_the_training_data_share_it_and_request_no_host_memory(predictor):
    def known(one):
        return replace(one, in_domain=True)

    able = Altered(
        predictor, memory_bytes=known, slowdowns=known,
        compute_utilization=lambda one: replace(one, low=0.1, median=0.2, high=0.3, in_domain=True),
    )  # fmt: skip
    found = asked(able, device="a100-80gb", most_slowdown=1.99, most_trials=2)

    assert found == {"GPU": 0.5, "CPU": 1.0}
    assert found.sharing.memory_bytes is not None


@pytest.mark.parametrize("name", ["memory_bytes", "compute_utilization"])
def test_a_forecast_out_of_domain_is_a_whole_device(predictor, name):
    strange = Altered(predictor, **{name: lambda one: replace(one, in_domain=False)})
    found = asked(strange, loading=WAITING)

    assert found == {"CPU": 2.0}
    assert "outside the training data" in found.reason


def test_slowdowns_out_of_domain_are_a_whole_device(predictor):
    strange = Altered(predictor, slowdowns=lambda one: replace(one, in_domain=False))
    found = asked(strange, loading=WAITING)

    assert found.trials_per_device == 1
    assert "no forecast of the slowdown of 2, which is outside the training data" in found.reason


def test_a_forecast_that_is_not_a_number_is_a_whole_device(predictor):
    broken = Altered(predictor, memory_bytes=lambda one: replace(one, high=math.nan))
    found = asked(broken, loading=WAITING)

    assert found == {"CPU": 2.0}
    assert "no forecast" in found.reason


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"risk": 0.0}, ConfigError, r"risk=0.0, must be above 0"),
        ({"risk": 1.0}, ConfigError, r"risk=1.0, must be above 0 and at most 0.5"),
        ({"risk": math.nan}, ConfigError, r"risk=nan"),
        ({"risk": -0.1}, ConfigError, r"risk=-0.1"),
        ({"risk": 0.01}, ConfigError, r"risk=0.01 is below .* \(0.05, 0.1, 0.5\)"),
        ({"most_slowdown": 2.5}, ConfigError, r"most_slowdown=2.5, must be below 2"),
        ({"most_trials": 0}, ConfigError, r"most_members=0"),
        ({"device": "h20"}, UnknownDeviceError, r"did you mean 'h200'"),
        ({"device_memory_bytes": 0}, ConfigError, r"device_memory_bytes=0"),
        ({"device_memory_bytes": math.nan}, ConfigError, r"device_memory_bytes=nan"),
        ({"device_resource": "GPU"}, ConfigError, r"device_resource='GPU' is a resource of Ray's"),
        ({"cpus": -1}, ConfigError, r"cpus=-1"),
        ({"process_bytes": math.nan}, ConfigError, r"process_bytes=nan"),
        ({"predictor": "nowhere"}, ConfigError, r"predictor='nowhere' is neither HOST:PORT"),
        ({"predictor": "head:99999"}, ConfigError, r"port 99999 is out of range"),
        ({"batch_size": 8}, InvalidJobError, r"define batch_size already"),
    ],
)
def test_invalid_arguments_are_errors_of_one_line(predictor, options, error, message):
    with pytest.raises(error, match=message) as raised:
        asked(predictor, **options)
    assert "\n" not in str(raised.value)


def test_a_model_that_cannot_be_read_is_an_error(predictor):
    with pytest.raises(GraphError, match=r"nowhere\.onnx"):
        resources("nowhere.onnx", predictor=predictor, device="cpu-2")


def test_a_job_of_the_zoo_and_a_module_are_trials_too(predictor):
    by_name = resources("resnet/w16-d8/b8/sgd", predictor=predictor, device="cpu-2")
    assert by_name == asked(predictor)

    by_function = resources(
        "examples.my_model:classifier", predictor=predictor, device="cpu-2", batch_size=4
    )
    assert by_function["CPU"] == 2.0


def test_without_a_server_a_trial_has_a_whole_device_with_the_reason():
    found = asked("127.0.0.1:1")

    assert found == {"CPU": 2.0}
    assert "no prediction service at 127.0.0.1:1" in found.reason
    with pytest.raises(UnknownDeviceError, match="did you mean 'h200'"):
        asked("127.0.0.1:1", device="h20")


def test_a_server_answers_as_its_release_does(predictor):
    with serving("--release", RELEASE) as server:
        found = asked(server.target, loading=WAITING)

    assert found == asked(predictor, loading=WAITING)
    assert found.sharing == asked(predictor, loading=WAITING).sharing


def test_resources_can_be_sent_to_other_processes(predictor):
    found = asked(predictor, loading=WAITING)
    received = pickle.loads(pickle.dumps(found))

    assert isinstance(received, TrialResources)
    assert (received, received.sharing) == (found, found.sharing)


def test_ray_is_not_imported():
    code = "import sys, presage.ray; sys.exit('ray' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@needs_ray
def test_tune_and_ray_itself_run_trials_with_these_resources():
    ended = run_ray_driver(Path(__file__).with_name("ray_trials.py"), timeout_s=250)

    assert ended.stdout.splitlines()[-1] == "3 at once under Tune, 3 at once under Ray"
