"""`presage doctor` on a machine with a GPU; without one it is in test_cli."""

from __future__ import annotations

import os

import pynvml
import pytest

from presage.cli.measuring import diagnosis as doctor
from tests.pipelines.profiling.recorded_nvml import RecordedNvml, responses

H200 = responses(
    DeviceGetCount=1,
    DeviceGetHandleByIndex="handle",
    DeviceGetName="NVIDIA H200",
    DeviceGetMemoryInfo={"total": 140 << 30, "used": 0, "free": 140 << 30},
    DeviceGetComputeMode=0,
    DeviceGetMigMode=[0, 0],
    DeviceGetUtilizationRates={"gpu": 0, "memory": 0},
    DeviceGetComputeRunningProcesses=[],
    DeviceGetTotalEnergyConsumption=5,
    SystemGetDriverVersion="580.95.05",
    SystemGetCudaDriverVersion=13000,
)


@pytest.fixture(autouse=True)
def torch_with_cuda(monkeypatch, tmp_path):
    """A machine whose torch can use a GPU, without MPS and DCGM."""
    monkeypatch.setattr(doctor, "torch_runs_on_nvidia", lambda: True)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))


def look(*more) -> dict[str, doctor.Finding]:
    return {f.what: f for f in doctor.nvidia(RecordedNvml([*H200, *more]))}


def test_a_gpu_is_reported_with_its_driver_and_sharing_modes():
    found = look()

    assert found["NVIDIA driver"].found == "580.95.05, CUDA 13.0, 1 GPUs"
    assert found["GPU"].found.startswith("NVIDIA H200, 140")
    assert "compute mode default" in found["GPU"].found
    assert found["MIG"].found == "off"
    assert "nvidia-cuda-mps-control -d" in found["MPS"].found
    assert found["DCGM"].found == "not installed"
    assert found["GPU counters"].ok


def test_counters_without_permission_are_named():
    no = pynvml.NVMLError(pynvml.NVML_ERROR_NO_PERMISSION)
    found = look(*responses(DeviceGetProcessUtilization=no))["GPU counters"]

    assert (found.ok, found.found) == (False, "no permission for nvmlDeviceGetProcessUtilization")


def test_a_lost_gpu_is_reported_with_the_fix():
    gone = pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
    found = look(*responses(DeviceGetMemoryInfo=gone))

    assert found["NVIDIA driver"].ok
    assert not found["GPU"].ok
    assert "GPU is lost" in found["GPU"].found


def test_a_driver_without_a_gpu_is_not_a_problem():
    (found,) = doctor.nvidia(
        RecordedNvml(
            responses(
                DeviceGetCount=0, SystemGetDriverVersion="580", SystemGetCudaDriverVersion=13020
            )
        )
    )  # fmt: skip

    assert (found.found, found.ok) == ("580, CUDA 13.2, 0 GPUs", True)


def test_a_torch_that_cannot_use_the_gpu_is_a_problem(monkeypatch):
    monkeypatch.setattr(doctor, "torch_runs_on_nvidia", lambda: False)

    assert look()["NVIDIA driver"].ok is False


@pytest.mark.parametrize(
    "uid, says",
    [(0, "as its submitter's account"), (1000, "every submitter can read its files and token")],
)
def test_the_account_of_jobs_is_reported_for_an_agent_of_this_user(monkeypatch, uid, says):
    monkeypatch.setattr(os, "geteuid", lambda: uid)

    (found,) = (one for one in doctor.diagnose("", "") if one.what == "cluster jobs")

    assert says in found.found
