"""Measured usage of tasks."""

from __future__ import annotations

import math
import sys
import time
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from presage.schedulers.live.agent.isolation.duty_cycle import DutyCycle
from presage.schedulers.live.agent.isolation.task_usage import CpuMeter, GpuMeter, Usage, make_meter
from presage.schedulers.live.agent.tasks.task import DesiredState
from presage.schedulers.live.agent.tasks.task_process import launch, set_desired_state
from tests.schedulers.live.agent.node import SLEEPS, job_pid, says
from tests.support.waiting import wait_until

MIB = 2**20


@given(milli=st.integers(1, 1000), since_s=st.floats(0.0, 1e6))
def test_a_duty_cycle_runs_for_its_fraction_of_the_time(milli, since_s):
    duty, now_s, ran_s = DutyCycle(milli, since_s), since_s, 0.0
    for _ in range(40):
        next_s = min(duty.next_s(now_s), now_s + 1.0)
        assert next_s >= now_s
        # Slightly later: the instant of a change belongs to either side.
        if duty.runs((now_s + next_s) / 2):
            ran_s += next_s - now_s
        now_s = next_s + 1e-7
    periods = (now_s - since_s) / max(0.1, 2 / milli)
    if periods > 5:
        assert ran_s / (now_s - since_s) == pytest.approx(milli / 1000, abs=0.3 / periods + 0.01)


def test_a_full_share_never_stops():
    duty = DutyCycle(1000, 5.0)
    assert duty.next_s(7.0) == math.inf
    assert all(duty.runs(5.0 + step * 0.013) for step in range(100))


@pytest.mark.parametrize("groups", [True, False])
def test_all_processes_of_a_task_are_counted_including_ended_ones(node, groups):
    code = (
        "import os, time\n"
        "def burn():\n"
        "    ends = time.process_time() + 0.2\n"
        "    while time.process_time() < ends: pass\n"
        "for _ in range(2):\n"
        "    if os.fork() == 0:\n"
        "        os.setsid(); burn(); os._exit(0)\n"
        "    os.wait()\n"
        "taken = bytearray(60 * 2**20)\n"
        "print('up', flush=True)\n"
        "if os.fork() == 0: os.setsid()\n"
        "time.sleep(600)\n"
    )
    task = node.make(code, use_control_groups=groups)
    meter, began_s = make_meter(task), time.monotonic()
    assert isinstance(meter, CpuMeter)
    assert meter.read() == Usage(None, 0)
    launch(task)
    says(task.folder, "up")

    used = meter.read()

    assert used.compute_milli is not None
    spent_s = used.compute_milli / 1000 * meter.cpus * (time.monotonic() - began_s)
    assert 0.38 < spent_s < 5.0
    # The fork shares its memory; during the fork only one process may be visible.
    wait_until(lambda: 60 * MIB < (meter.read().memory_bytes or 0) < 130 * MIB)


def test_a_task_without_processes_uses_nothing(node):
    task = node.make(SLEEPS)
    meter = make_meter(task)
    meter.read()
    assert meter.read() == Usage(0.0, 0)


def test_without_a_driver_the_usage_of_a_gpu_is_unknown(node, monkeypatch):
    task = node.make(SLEEPS, cuda=(0,))
    monkeypatch.setitem(sys.modules, "pynvml", None)

    assert make_meter(task).read() == Usage(None, None)


class Nvml:
    """Subset of pynvml with two GPUs of equal usage."""

    class NVMLError(Exception):
        pass

    class NVMLError_NotFound(NVMLError):  # noqa: N801, N818 as pynvml has it
        pass

    def __init__(self) -> None:
        self.open = 0
        self.samples: list[SimpleNamespace] | Exception = []
        self.running: list[SimpleNamespace] = []
        self.since: list[int] = []

    def nvmlInit(self) -> None:
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        if index not in (1, 2):
            raise self.NVMLError(index)
        return index

    def nvmlDeviceGetProcessUtilization(self, _: int, since: int) -> list[SimpleNamespace]:
        self.since.append(since)
        if isinstance(self.samples, Exception):
            raise self.samples
        return self.samples

    def nvmlDeviceGetComputeRunningProcesses(self, _: int) -> list[SimpleNamespace]:
        return self.running


def test_gpu_usage_counts_only_the_tasks_own_processes(node):
    folder = node.start(SLEEPS)
    says(folder, "up")
    pid, nvml = job_pid(folder), Nvml()
    meter = GpuMeter(folder, (1,), nvml=nvml)
    stamp = 2**62  # long after now
    nvml.samples = [
        SimpleNamespace(pid=pid, smUtil=20, timeStamp=stamp),
        SimpleNamespace(pid=pid, smUtil=40, timeStamp=stamp + 1),
        SimpleNamespace(pid=1, smUtil=60, timeStamp=stamp),
    ]
    nvml.running = [
        SimpleNamespace(pid=pid, usedGpuMemory=5 * MIB),
        SimpleNamespace(pid=1, usedGpuMemory=7 * MIB),
    ]

    assert meter.read() == Usage(300.0, 5 * MIB)

    nvml.samples = nvml.NVMLError_NotFound()
    nvml.running = [SimpleNamespace(pid=pid, usedGpuMemory=None)]
    assert meter.read() == Usage(0.0, None)
    assert nvml.since[-1] == stamp + 1
    nvml.samples = nvml.NVMLError("not supported")
    assert meter.read() == Usage(None, None)
    assert GpuMeter(folder, (7,), nvml=nvml).read() == Usage(None, None)
    assert nvml.open == 0


def test_all_gpus_of_a_gang_are_counted(node):
    folder = node.start(SLEEPS)
    says(folder, "up")
    pid, nvml = job_pid(folder), Nvml()
    nvml.samples = [SimpleNamespace(pid=pid, smUtil=30, timeStamp=2**62)]
    nvml.running = [SimpleNamespace(pid=pid, usedGpuMemory=5 * MIB)]

    assert GpuMeter(folder, (1, 2), nvml=nvml).read() == Usage(300.0, 10 * MIB)
    assert GpuMeter(folder, (1, 7), nvml=nvml).read() == Usage(
        None, None
    )  # no total without all parts


def test_a_change_of_share_changes_the_measured_usage(node):
    task = node.make(
        "while True: pass", cpus=(0,), wanted=DesiredState(100), use_control_groups=False
    )
    launch(task)
    job_pid(task.folder)
    meter = make_meter(task)
    meter.read()
    time.sleep(0.6)
    low = meter.read().compute_milli or 0.0
    set_desired_state(task.folder, DesiredState(1000))

    def more() -> bool:
        time.sleep(0.4)
        return (meter.read().compute_milli or 0.0) > 1.5 * low

    wait_until(more)
