"""Detection of GPU sharing modes; a script stands in for the MPS daemon."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pynvml
import pytest

from presage.errors import ProfilingError
from presage.features.device.device import Share, catalogue
from presage.features.device.local_device import detect
from presage.pipelines.profiling.running import gpu_sharing
from presage.pipelines.profiling.running.gpu_sharing import (
    CPU_MODES,
    GpuSharing,
    MigSlice,
    detect_sharing,
    environment_of,
    full_share,
    gpu_environment,
    is_mps_daemon_running,
)
from presage.pipelines.profiling.running.profiler import undivided_share
from tests.pipelines.profiling.recorded_nvml import RecordedNvml, responses
from tests.support.waiting import wait_until

CPU = detect(gpu=False)
WHERE = responses(DeviceGetHandleByIndex="handle")
SLICES = (
    MigSlice("MIG-a", 3 / 7, 40 << 30),
    MigSlice("MIG-b", 1 / 7, 20 << 30),
    MigSlice("MIG-c", 1 / 7, 10 << 30),
)


@pytest.fixture(autouse=True)
def no_daemon(monkeypatch, tmp_path):
    """Hide the MPS daemon and its program."""
    pipes = tmp_path / "mps"
    pipes.mkdir()
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(pipes))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    (tmp_path / "bin").mkdir()
    return pipes


def install_control(bin_folder: Path, script: str) -> None:
    command = bin_folder / "nvidia-cuda-mps-control"
    command.write_text(f"#!{sys.executable}\nimport sys\n{script}")
    command.chmod(0o755)


ANSWERS = "assert sys.argv[1:] == []; assert sys.stdin.read() == 'get_server_list\\n'"
REFUSES = "print('Cannot find MPS control daemon process'); sys.exit(1)"


def test_a_daemon_is_running_if_its_pipe_exists_and_it_responds(no_daemon, tmp_path):
    install_control(tmp_path / "bin", ANSWERS)
    assert not is_mps_daemon_running()
    (no_daemon / "control").touch()
    assert is_mps_daemon_running()
    install_control(tmp_path / "bin", REFUSES)  # it died, and left its pipe
    assert not is_mps_daemon_running()


def test_without_its_program_a_daemon_is_searched_among_the_processes(no_daemon):
    (no_daemon / "control").touch()
    assert not is_mps_daemon_running()
    name = "/usr/bin/nvidia-cuda-mps-control"
    sleeps = [name, "-c", "import time; time.sleep(60)"]
    process = subprocess.Popen(sleeps, executable=sys.executable)
    try:
        wait_until(is_mps_daemon_running)  # its name is there a moment after its process is
    finally:
        process.kill()
        process.wait()


def test_a_gpu_without_mig_and_mps_is_shared_by_time_slice():
    sharing = detect_sharing(RecordedNvml([*WHERE, *responses(DeviceGetMigMode=[0, 0])]))

    assert sharing == GpuSharing(mps=False)
    assert sharing.modes == ("exclusive", "time-slice")


def test_a_gpu_without_mig_support_has_no_slices():
    no = responses(DeviceGetMigMode=pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED))

    assert not detect_sharing(RecordedNvml([*WHERE, *no])).mig


def test_mig_slices_are_recorded_with_their_fraction_of_the_compute():
    driver = RecordedNvml(
        [
            *WHERE,
            *responses(
                DeviceGetMigMode=[1, 1],
                DeviceGetMaxMigDeviceCount=7,
                DeviceGetUUID="MIG-a",
                DeviceGetAttributes={"computeInstanceSliceCount": 3, "memorySizeMB": 40 << 10},
            ),
            {
                "at_s": 0.0,
                "call": "nvmlDeviceGetMigDeviceHandleByIndex",
                "arguments": [2],
                "answer": "slice",
            },
        ]
    )
    sharing = detect_sharing(driver)

    assert sharing.mig
    assert sharing.slices == (MigSlice("MIG-a", 3 / 7, 40 << 30),)
    assert sharing.modes == ("mig",)


@pytest.mark.parametrize(
    ("sharing", "modes"),
    [
        (GpuSharing(mps=True), ("exclusive", "time-slice", "mps")),
        (GpuSharing(mps=True, compute_mode="exclusive-process"), ("exclusive", "mps")),
        (GpuSharing(mps=False, compute_mode="prohibited"), ()),
        (GpuSharing(mps=True, mig=True), ()),
        (GpuSharing(mps=True, mig=True, slices=SLICES), ("mig",)),
    ],
)
def test_only_working_modes_are_listed(sharing, modes):
    assert sharing.modes == modes


def test_a_share_by_mps_is_a_percentage_of_the_threads():
    sharing = GpuSharing(mps=True)

    assert gpu_environment(Share(0.25, "mps"), sharing) == {
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25"
    }
    assert gpu_environment(Share(0.001, "mps"), sharing) == {
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "1"
    }


def test_a_share_by_mig_is_the_smallest_slice_of_that_compute():
    sharing = GpuSharing(mps=False, mig=True, slices=SLICES)

    assert gpu_environment(Share(0.14, "mig"), sharing) == {"CUDA_VISIBLE_DEVICES": "MIG-c"}
    with pytest.raises(ProfilingError, match=r"no MIG slice is 0.500 .* 0.143, 0.429"):
        gpu_environment(Share(0.5, "mig"), sharing)


def test_a_full_share_in_mig_mode_is_the_named_or_the_largest_slice(monkeypatch):
    h100 = catalogue()["h100"]
    assert full_share(CPU) == Share()
    monkeypatch.setattr(gpu_sharing, "detect_sharing", lambda: GpuSharing(mps=False))
    assert full_share(h100) == Share()

    sharing = GpuSharing(mps=False, mig=True, slices=SLICES)
    monkeypatch.setattr(gpu_sharing, "detect_sharing", lambda: sharing)
    assert full_share(h100) == Share(3 / 7, "mig")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-b")
    assert full_share(h100) == Share(1 / 7, "mig")
    assert environment_of(full_share(h100), h100) == {"CUDA_VISIBLE_DEVICES": "MIG-b"}


def test_the_environment_of_a_share_names_the_device_without_another_query():
    h100, slice_ = catalogue()["h100"], Share(3 / 7, "mig")

    assert undivided_share(h100, 4, Share(), mode="time-slice") == Share(mode="time-slice")
    assert undivided_share(h100, 4, slice_, mode="time-slice") == slice_
    assert undivided_share(CPU, CPU.cores, Share(), mode="exclusive") == Share()
    assert undivided_share(catalogue()["cpu-2"], 1, Share(), mode="exclusive") == Share(
        0.5, "cpu-quota"
    )


@pytest.mark.parametrize("mode", ["exclusive", "time-slice"])
def test_time_slicing_bypasses_a_running_daemon(mode):
    assert gpu_environment(Share(1.0, mode), GpuSharing(mps=False)) == {}
    environment = gpu_environment(Share(1.0, mode), GpuSharing(mps=True))

    assert list(Path(environment["CUDA_MPS_PIPE_DIRECTORY"]).iterdir()) == []


@pytest.mark.parametrize(
    ("share", "words"),
    [
        (Share(0.5, "mps"), "start it with `nvidia-cuda-mps-control -d`"),
        (Share(0.5, "mig"), "nvidia-smi mig -cgi"),
        (Share(0.5, "time-slice"), "cannot be enforced"),
        (Share(0.5, "cpu-quota"), "this mode is for processors"),
    ],
)
def test_the_error_of_an_impossible_share_has_a_remedy(share, words):
    with pytest.raises(ProfilingError, match=words):
        gpu_environment(share, GpuSharing(mps=False))


def test_a_share_of_this_machines_gpu_uses_the_detected_modes(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", RecordedNvml(WHERE))

    assert detect_sharing().modes == ("exclusive", "time-slice")
    assert environment_of(Share(), catalogue()["h100"]) == {}
    with pytest.raises(ProfilingError, match="daemon is not running"):
        environment_of(Share(0.5, "mps"), catalogue()["h100"])


def test_a_processor_needs_no_environment_and_has_no_mps():
    for mode in CPU_MODES:
        assert environment_of(Share(0.5, mode), CPU) == {}
    with pytest.raises(ProfilingError, match="is a processor; use one of exclusive"):
        environment_of(Share(0.5, "mps"), CPU)
