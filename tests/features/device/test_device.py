import os

import pytest

from presage.errors import InvalidJobError, UnknownDeviceError
from presage.features.device.device import catalogue, cpu_kind, find_device, usable_cores
from presage.features.device.local_device import detect
from tests.features.examples import device


def test_every_device_of_the_catalogue_is_valid():
    assert {"k80", "v100", "a100-40gb", "h200", "cpu-2"} <= catalogue().keys()
    assert catalogue()["v100"].compute_capability == 7.0


def test_a_precision_without_its_own_peak_runs_at_fp32s():
    assert catalogue()["k80"].flops_per_s("bf16") == catalogue()["k80"].flops_per_s("fp32")
    assert catalogue()["h200"].flops_per_s("bf16") > catalogue()["h200"].flops_per_s("fp32")


def test_the_error_of_an_unknown_kind_names_the_nearest():
    with pytest.raises(UnknownDeviceError, match="did you mean 'v100'"):
        find_device("V1000")


def test_measured_devices_take_precedence_over_the_catalogue():
    measured = device(kind="v100", cores=1)

    assert find_device("v100", {"v100": measured}) is measured


def test_without_a_gpu_the_processor_is_the_device():
    found = detect(gpu=False)

    assert found.compute_capability == 0
    assert found.kind == cpu_kind() == f"cpu-{len(os.sched_getaffinity(0))}"
    assert found.memory_bytes > 2**28


def test_a_system_without_affinity_and_memory_figures_gets_nominal_ones(monkeypatch):
    for call in ("sched_getaffinity", "sysconf"):
        monkeypatch.delattr(os, call)
    monkeypatch.setattr(os, "cpu_count", lambda: 6)

    assert usable_cores() == 6
    assert detect(gpu=False).memory_bytes == 6 * catalogue()["cpu-1"].memory_bytes


@pytest.mark.parametrize(
    "change",
    [{"cores": 0}, {"memory_bandwidth_bytes_per_s": float("nan")}, {"op_overhead_s": -1.0}],
)
def test_an_impossible_device_is_rejected(change):
    with pytest.raises(InvalidJobError, match=next(iter(change))):
        device(**change)
