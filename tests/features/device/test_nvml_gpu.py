import subprocess
import sys
from types import SimpleNamespace

import pytest

from presage.features.device import nvml_gpu as gpu
from presage.features.device.device import catalogue
from presage.features.device.local_device import detect

GIB = 2**30


class Driver:
    """NVML of a machine with one GPU, or none; ``fails`` is the call that it does not support."""

    class NVMLError(Exception):
        pass

    NVML_CLOCK_SM, NVML_CLOCK_MEM = 1, 2

    def __init__(self, name="", memory_gib=16, *, fails=None):
        self._name, self._memory_gib, self._fails = name, memory_gib, fails

    def __getattribute__(self, attribute):
        if attribute == object.__getattribute__(self, "_fails"):
            raise Driver.NVMLError("Not Supported")
        return object.__getattribute__(self, attribute)

    def nvmlInit(self):
        pass

    def nvmlShutdown(self):
        pass

    def nvmlDeviceGetCount(self):
        return 1 if self._name else 0

    def nvmlDeviceGetHandleByIndex(self, index):
        return index

    def nvmlDeviceGetName(self, handle):
        return self._name

    def nvmlDeviceGetMemoryInfo(self, handle):
        return SimpleNamespace(total=self._memory_gib * GIB)

    # Those of an L40S, under a name that no sheet has.
    def nvmlDeviceGetCudaComputeCapability(self, handle):
        return (8, 9)

    def nvmlDeviceGetNumGpuCores(self, handle):
        return 18176

    def nvmlDeviceGetMaxClockInfo(self, handle, which):
        return {self.NVML_CLOCK_SM: 2520, self.NVML_CLOCK_MEM: 9001}[which]

    def nvmlDeviceGetMemoryBusWidth(self, handle):
        return 384


@pytest.fixture
def machine(monkeypatch):
    """Function that installs this driver, and a torch that can use it."""

    def with_driver(driver):
        monkeypatch.setitem(sys.modules, "pynvml", driver)
        monkeypatch.setattr(gpu, "torch_runs_on_nvidia", lambda: True)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    return with_driver


def test_a_known_gpu_has_its_data_sheet_with_the_memory_of_the_driver(machine):
    machine(Driver("NVIDIA A100 80GB PCIe", memory_gib=79))
    found = detect()

    assert found.kind == "a100-80gb"
    assert found.cores == catalogue()["a100-80gb"].cores
    assert found.memory_bytes == 79 * GIB


def test_a_gpu_outside_the_catalogue_is_described_by_its_driver(machine):
    machine(Driver("NVIDIA L40G", memory_gib=45))
    found = detect()

    assert (found.kind, found.cores, found.compute_capability) == ("l40g", 18176, 8.9)
    assert found.memory_bytes == 45 * GIB
    # The data sheet of the L40S says 91.6 TFLOP/s and 864 GB/s.
    assert found.flops_per_s("fp32") == pytest.approx(91.6e12, rel=0.01)
    assert found.memory_bandwidth_bytes_per_s == pytest.approx(864e9, rel=0.01)


@pytest.mark.parametrize("fails", ["nvmlDeviceGetName", "nvmlDeviceGetMemoryBusWidth"])
def test_a_gpu_that_its_driver_cannot_describe_is_skipped_with_a_warning(machine, caplog, fails):
    machine(Driver("NVIDIA L40G", fails=fails))

    assert detect().compute_capability == 0
    (line,) = caplog.messages
    assert "using the processor instead" in line
    assert "Not Supported" in line


@pytest.mark.parametrize("driver", [Driver(), Driver("Tesla T4", fails="nvmlInit")])
def test_without_a_gpu_or_a_driver_the_processor_is_used_without_a_warning(machine, caplog, driver):
    machine(driver)

    assert detect().compute_capability == 0
    assert not caplog.messages


@pytest.mark.parametrize("hidden", ["", "-1"])
def test_a_hidden_gpu_is_not_used(machine, monkeypatch, hidden):
    machine(Driver("Tesla T4"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)

    assert detect().compute_capability == 0


def test_a_gpu_that_torch_does_not_support_is_not_used(machine, monkeypatch):
    machine(Driver("Tesla T4"))
    monkeypatch.setattr(gpu, "torch_runs_on_nvidia", lambda: False)

    assert detect().compute_capability == 0


def test_the_targets_of_torch_are_read_without_importing_it():
    script = (
        "import sys; from presage.features.device.nvml_gpu import torch_runs_on_nvidia as runs; "
        "answer = runs(); assert 'torch' not in sys.modules; "
        "import torch; assert answer == (torch.version.cuda is not None)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
