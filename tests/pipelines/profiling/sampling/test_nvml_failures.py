"""NVML sampler with a driver that fails, denies permission, or is lost."""

from __future__ import annotations

import sys
import threading
import time

import pynvml
import pytest

from presage.errors import ProfilingError
from presage.features.device.device import catalogue
from presage.features.device.local_device import detect
from presage.pipelines.profiling.sampling import nvml_device, nvml_sampler
from presage.pipelines.profiling.sampling.device_sample import DeviceSample
from presage.pipelines.profiling.sampling.nvml_errors import VERDICTS, Verdict, verdict
from presage.pipelines.profiling.sampling.nvml_sampler import NvmlSampler
from presage.pipelines.profiling.sampling.samplers import memory_in_use_bytes, require_driver
from presage.pipelines.profiling.sampling.sm_counters import SmReading
from tests.pipelines.profiling.gpu_window import (
    GIB,
    MEMBER,
    MEMORY,
    WHERE,
    busy_with,
    failing,
    load,
    processes,
    sample,
)
from tests.pipelines.profiling.recorded_nvml import RecordedNvml, responses
from tests.support.waiting import stays_true

pytestmark = pytest.mark.usefixtures("gpu_machine")

OPTIONAL = (
    "DeviceGetUtilizationRates",
    "DeviceGetSamples",
    "DeviceGetComputeRunningProcesses",
    "DeviceGetProcessUtilization",
    "DeviceGetTotalEnergyConsumption",
    "DeviceGetPowerUsage",
    "DeviceGetClockInfo",
    "DeviceGetCurrentClocksEventReasons",
)


def all_fail(code: int):
    return [*WHERE, *MEMORY, *responses(**dict.fromkeys(OPTIONAL, failing(code)))]


@pytest.mark.parametrize(
    "code",
    [
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_NO_PERMISSION,
        pynvml.NVML_ERROR_TIMEOUT,
        pynvml.NVML_ERROR_UNKNOWN,  # what a sandbox makes of a question that it does not know
    ],
)
def test_unsupported_values_are_none(code):
    assert sample(all_fail(code)) == DeviceSample(None, None)
    assert sample([*WHERE, *MEMORY]) == DeviceSample(None, None)  # an old nvidia-ml-py


@pytest.mark.parametrize(
    "code",
    [code for code, meaning in VERDICTS.items() if meaning is Verdict.GONE]
    + [pynvml.NVML_ERROR_UNKNOWN],
)
@pytest.mark.parametrize("function", ["DeviceGetUtilizationRates", "DeviceGetMemoryInfo"])
def test_the_loss_of_the_driver_in_a_window_is_an_error_with_a_remedy(code, function):
    fine = busy_with(load(MEMBER, 60), member=300)
    sampler = NvmlSampler(
        RecordedNvml(
            [
                *fine,
                *responses(at_s=0.1, **{function: failing(code)}),
                *responses(at_s=0.1, DeviceGetMemoryInfo=failing(code)),
            ]
        ),
        period_s=0.005,
    )
    sampler.start([MEMBER])
    time.sleep(0.15)

    with pytest.raises(ProfilingError, match=r"^NVML: .*dmesg.*run the same command again"):
        sampler.stop()


def test_the_loss_of_the_driver_before_a_window_is_an_error_too():
    gone = failing(pynvml.NVML_ERROR_GPU_IS_LOST)
    with pytest.raises(ProfilingError, match="GPU is lost"):
        NvmlSampler(RecordedNvml(responses(DeviceGetHandleByIndex=gone)))
    sampler = NvmlSampler(RecordedNvml([*WHERE, *responses(DeviceGetSamples=gone)]))
    with pytest.raises(ProfilingError, match="GPU is lost"):
        sampler.start([MEMBER])


def test_a_hanging_driver_ends_a_window_and_is_not_called_again(monkeypatch):
    class Counters:
        def start(self) -> None:
            pass

        def stop(self) -> SmReading:
            pytest.fail("it would hang, too")

    monkeypatch.setattr(nvml_sampler, "PATIENCE_S", 0.1)
    over = threading.Event()
    hangs = responses(DeviceGetUtilizationRates=lambda: over.wait(60))
    sampler = NvmlSampler(RecordedNvml([*WHERE, *MEMORY, *hangs]), counters=Counters())
    sampler.start([MEMBER])

    try:
        with pytest.raises(ProfilingError, match=r"NVML did not respond .*nvidia-smi"):
            sampler.stop()
    finally:
        over.set()


def test_a_transient_failure_is_retried():
    busy = responses(DeviceGetUtilizationRates=failing(pynvml.NVML_ERROR_TIMEOUT))
    later = responses(at_s=0.1, DeviceGetUtilizationRates={"gpu": 70, "memory": 0})

    assert sample([*WHERE, *MEMORY, *busy, *later]).compute_utilization == pytest.approx(0.7)


@pytest.mark.parametrize("code", [pynvml.NVML_SUCCESS, pynvml.NVML_ERROR_NOT_FOUND])
def test_an_empty_list_of_process_samples_is_no_foreign_load(code):
    listed = processes(member=300)
    empty = responses(
        DeviceGetProcessUtilization=failing(code), DeviceGetComputeRunningProcesses=listed
    )

    assert sample([*WHERE, *MEMORY, *empty]).foreign_load == 0


def test_an_unsupported_call_is_made_once():
    driver = RecordedNvml(all_fail(pynvml.NVML_ERROR_NOT_SUPPORTED))
    sampler = NvmlSampler(driver, period_s=0.005)
    for _ in range(2):
        sampler.start([MEMBER])
        assert stays_true(lambda: driver.asked.count("nvmlDeviceGetUtilizationRates") <= 1, 0.03)
        sampler.stop()

    assert driver.asked.count("nvmlDeviceGetUtilizationRates") == 1


def test_a_missing_permission_is_logged_once_by_name(caplog):
    no = responses(DeviceGetProcessUtilization=failing(pynvml.NVML_ERROR_NO_PERMISSION))
    for _ in range(2):
        assert sample([*WHERE, *MEMORY, *no]).foreign_load is None

    (line,) = caplog.messages
    assert "no permission for nvmlDeviceGetProcessUtilization" in line


def test_every_error_of_nvml_is_classified():
    codes = [getattr(pynvml, name) for name in dir(pynvml) if name.startswith("NVML_ERROR_")]

    assert all(isinstance(verdict(failing(code)), Verdict) for code in codes)
    assert verdict(failing(12345)) is verdict(RuntimeError()) is Verdict.SUSPECT


def test_a_crash_is_attributed_to_the_job_only_if_the_driver_responds(monkeypatch):
    h100 = catalogue()["h100"]
    monkeypatch.setitem(sys.modules, "pynvml", RecordedNvml([*WHERE, *MEMORY]))
    require_driver(h100)
    assert memory_in_use_bytes(h100) == 3 * GIB
    assert memory_in_use_bytes(detect(gpu=False)) is None

    lost = responses(DeviceGetMemoryInfo=failing(pynvml.NVML_ERROR_GPU_IS_LOST))
    monkeypatch.setitem(sys.modules, "pynvml", RecordedNvml([*WHERE, *lost]))
    with pytest.raises(ProfilingError, match="nvidia-smi"):
        require_driver(h100)


@pytest.mark.parametrize(
    ("visible", "handle"),
    [("0", "first"), ("1,0", "second"), ("GPU-beef", "second"), ("MIG-1", "parent")],
)
def test_the_sampled_gpu_is_the_one_visible_to_jobs(monkeypatch, visible, handle):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)

    class TwoGpus(RecordedNvml):
        def nvmlDeviceGetCount(self):
            return 2

        def nvmlDeviceGetHandleByIndex(self, index):
            return ("first", "second")[index]

        def nvmlDeviceGetUUID(self, handle):
            return {"first": "GPU-cafe-1", "second": "GPU-beef-2"}[handle]

        def nvmlDeviceGetHandleByUUID(self, uuid):
            return f"slice {uuid}"

        def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, slice_handle):
            assert slice_handle == "slice MIG-1"
            return "parent"

    assert nvml_device.NvmlDevice(TwoGpus([])).handle == handle
