"""Device lock: one profiler per device."""

from __future__ import annotations

import os
import re
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from presage.errors import ProfilingError
from presage.features.device.device import catalogue
from presage.features.device.local_device import detect
from presage.pipelines.profiling.running import device_lock
from presage.pipelines.profiling.running.device_lock import FOLDER_VARIABLE, lock_device
from tests.pipelines.profiling.recorded_nvml import RecordedNvml, responses

CPU = detect(gpu=False)

HOLDS = """
import sys, time
from pathlib import Path
from presage.features.device.local_device import detect
from presage.pipelines.profiling.running.device_lock import lock_device
with lock_device(detect(gpu=False), Path(sys.argv[1])):
    print("locked", flush=True)
    time.sleep(60)
"""


@pytest.fixture(autouse=True)
def lock_folder(tmp_path, monkeypatch):
    """Separate lock folder of this test."""
    folder = tmp_path / "locks"
    folder.mkdir()
    monkeypatch.setenv(FOLDER_VARIABLE, str(folder))
    return folder


@pytest.fixture
def holder(tmp_path):
    """Another process that holds the lock."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(tmp_path / "theirs")], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "locked\n"
    yield process
    process.kill()
    process.communicate()


def test_a_second_profiler_is_rejected_with_the_identity_of_the_first(holder, tmp_path):
    told = (
        rf"device '{CPU.kind}' is being profiled by process {holder.pid} \(user .+, "
        rf"into {re.escape(str(tmp_path / 'theirs'))}, since 20.+\); wait for it"
    )
    with pytest.raises(ProfilingError, match=told), lock_device(CPU, tmp_path):
        pytest.fail("it was let in")


def test_the_lock_of_a_killed_process_is_released(holder, tmp_path):
    holder.send_signal(signal.SIGKILL)
    holder.wait()

    with lock_device(CPU, tmp_path):
        pass


def test_a_released_lock_can_be_acquired_again(tmp_path):
    for _ in range(2):
        with lock_device(CPU, tmp_path):
            pass
    with pytest.raises(KeyError), lock_device(CPU, tmp_path):
        raise KeyError
    with lock_device(CPU, tmp_path):
        pass


def test_a_holder_without_an_identity_yet_is_called_another_process(lock_folder, tmp_path):
    with lock_device(CPU, tmp_path):
        (lock_folder / "presage-profile-cpu.lock").write_text("{")
        with (
            pytest.raises(ProfilingError, match="by another process;"),
            lock_device(CPU, tmp_path),
        ):
            pytest.fail("it was let in")


def test_every_user_can_lock_after_any_umask_of_the_first(lock_folder, tmp_path):
    before = os.umask(0o077)
    try:
        with lock_device(CPU, tmp_path):
            pass
    finally:
        os.umask(before)

    mode = (lock_folder / "presage-profile-cpu.lock").stat().st_mode
    assert stat.S_IMODE(mode) == 0o666


def test_a_planted_link_is_not_followed(lock_folder, tmp_path, caplog):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (lock_folder / "presage-profile-cpu.lock").symlink_to(victim)
    with lock_device(CPU, tmp_path):
        pass

    assert victim.read_text() == "precious"
    assert "is not locked" in caplog.text


def test_without_a_writable_folder_there_is_a_warning_and_no_lock(monkeypatch, tmp_path, caplog):
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "missing"))
    with lock_device(CPU, tmp_path):
        pass

    (line,) = caplog.messages
    assert "is not locked" in line
    assert FOLDER_VARIABLE in line


def test_the_next_folder_is_used_when_the_first_cannot_be(monkeypatch, lock_folder, tmp_path):
    monkeypatch.delenv(FOLDER_VARIABLE)
    monkeypatch.setattr(device_lock, "FOLDERS", (Path("/proc"), lock_folder))
    with lock_device(CPU, tmp_path):
        assert list(lock_folder.iterdir())


def test_two_gpus_of_a_kind_and_the_processor_have_separate_locks(
    monkeypatch, lock_folder, tmp_path
):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    for uuid in ("GPU-1", "GPU-2"):
        driver = RecordedNvml(responses(DeviceGetHandleByIndex="handle", DeviceGetUUID=uuid))
        monkeypatch.setitem(sys.modules, "pynvml", driver)
        with lock_device(CPU, tmp_path), lock_device(catalogue()["h100"], tmp_path):
            pass

    assert {path.name for path in lock_folder.iterdir()} == {
        f"presage-profile-{key}.lock" for key in ("cpu", "GPU-1", "GPU-2")
    }
