import subprocess
import sys
from types import SimpleNamespace

import pytest

from presage.features import gpu
from presage.features.device import catalogue, detect, gpu_names
from presage.features.gpu import gpu_kind

GIB = 2**30


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("Tesla K80", "k80"),
        ("Tesla P4", "p4"),
        ("Tesla P40", None),
        ("Quadro P400", None),
        ("Quadro P4000", None),
        ("Tesla P100-PCIE-12GB", None),
        ("Tesla P100-PCIE-16GB", "p100"),
        ("Tesla P100-SXM2-16GB", "p100"),
        ("Tesla T4", "t4"),
        ("NVIDIA T400 4GB", None),
        ("T400", None),
        ("Tesla V100-SXM2-16GB", "v100-16gb"),
        ("Tesla V100-PCIE-16GB", "v100-16gb"),
        ("Tesla V100-SXM2-32GB", "v100"),
        ("Tesla V100-SXM3-32GB", "v100"),
        ("Tesla V100S-PCIE-32GB", None),
        ("NVIDIA GeForce RTX 3090", "rtx-3090"),
        ("GeForce RTX 3090", "rtx-3090"),
        ("NVIDIA GeForce RTX 3090 Ti", None),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("NVIDIA GeForce RTX 4090 D", None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("NVIDIA L4", "l4"),
        ("NVIDIA L40", None),
        ("NVIDIA L40S", None),
        ("NVIDIA A10", None),
        ("A100-SXM4-40GB", "a100-40gb"),
        ("A100-PCIE-40GB", "a100-40gb"),
        ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
        ("NVIDIA A100-SXM4-80GB", "a100-80gb"),
        ("NVIDIA A100-SXM-80GB", "a100-80gb"),
        ("NVIDIA A100 80GB PCIe", "a100-80gb"),
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", None),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H100 PCIe", None),
        ("NVIDIA H200", "h200"),
        ("NVIDIA GH200 480GB", None),
        ("NVIDIA B200", None),
        ("", None),
    ],
)
def test_a_name_is_matched_as_a_whole(name, kind):
    assert gpu_kind(name) == kind


def test_every_gpu_of_the_catalogue_has_a_name():
    named = set(gpu_names().values())

    assert named == {d.kind for d in catalogue().values() if d.compute_capability > 0}


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

    # An L40S's.
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
    """A machine with this driver, and a torch that can use it."""

    def with_driver(driver):
        monkeypatch.setitem(sys.modules, "pynvml", driver)
        monkeypatch.setattr(gpu, "torch_runs_on_nvidia", lambda: True)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    return with_driver


def test_a_known_gpu_has_its_sheet_with_the_memory_that_the_driver_sees(machine):
    machine(Driver("NVIDIA A100-SXM4-80GB", memory_gib=79))
    found = detect()

    assert found.kind == "a100-80gb"
    assert found.cores == catalogue()["a100-80gb"].cores
    assert found.memory_bytes == 79 * GIB


def test_a_gpu_outside_the_catalogue_is_described_by_its_driver(machine):
    machine(Driver("NVIDIA L40S", memory_gib=45))
    found = detect()

    assert (found.kind, found.cores, found.compute_capability) == ("l40s", 18176, 8.9)
    assert found.memory_bytes == 45 * GIB
    # The data sheet says 91.6 TFLOP/s and 864 GB/s.
    assert found.flops_per_s("fp32") == pytest.approx(91.6e12, rel=0.01)
    assert found.memory_bandwidth_bytes_per_s == pytest.approx(864e9, rel=0.01)


@pytest.mark.parametrize("fails", ["nvmlDeviceGetName", "nvmlDeviceGetMemoryBusWidth"])
def test_a_gpu_that_its_driver_cannot_describe_is_left_out_aloud(machine, caplog, fails):
    machine(Driver("NVIDIA L40S", fails=fails))

    assert detect().compute_capability == 0
    (line,) = caplog.messages
    assert "the processor stands in" in line
    assert "Not Supported" in line


@pytest.mark.parametrize("driver", [Driver(), Driver("Tesla T4", fails="nvmlInit")])
def test_without_a_gpu_or_a_driver_the_processor_is_taken_in_silence(machine, caplog, driver):
    machine(driver)

    assert detect().compute_capability == 0
    assert not caplog.messages


@pytest.mark.parametrize("hidden", ["", "-1"])
def test_a_hidden_gpu_is_not_taken(machine, monkeypatch, hidden):
    machine(Driver("Tesla T4"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)

    assert detect().compute_capability == 0


def test_a_gpu_that_torch_cannot_run_on_is_not_taken(machine, monkeypatch):
    machine(Driver("Tesla T4"))
    monkeypatch.setattr(gpu, "torch_runs_on_nvidia", lambda: False)

    assert detect().compute_capability == 0


def test_what_torch_is_built_for_is_known_without_importing_it():
    script = (
        "import sys; from presage.features.gpu import torch_runs_on_nvidia as runs; "
        "answer = runs(); assert 'torch' not in sys.modules; "
        "import torch; assert answer == (torch.version.cuda is not None)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
