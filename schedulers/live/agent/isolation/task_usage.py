"""Measured use of a task: of its processors or its GPUs, and of their memory."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from presage.schedulers.live.agent.isolation.control_groups import find_isolation
from presage.schedulers.live.agent.isolation.job_environment import cpu_count
from presage.schedulers.live.agent.tasks.processes import (
    Stat,
    descendants,
    resident_bytes,
    seconds,
    stat,
)
from presage.schedulers.live.agent.tasks.task import FULL_DEVICE_MILLI
from presage.schedulers.live.agent.tasks.task_folder import TaskFolder
from presage.schedulers.live.agent.tasks.task_process import Task


class Usage(NamedTuple):
    """Resource use of all processes of a task; None if it cannot be measured.

    Attributes
    ----------
    compute_milli : float or None
        Use of the task's processors or GPUs since the last reading, in milli-devices.
    memory_bytes : int or None
        Current host memory, or memory on all its GPUs.
    """

    compute_milli: float | None
    memory_bytes: int | None


class Meter(Protocol):
    """Meter of one task's resource use."""

    def read(self) -> Usage:
        """Return the use since the last call. Raises nothing: a task may end at any moment."""


def make_meter(task: Task) -> Meter:
    """Return the meter for the kind of device of a task."""
    if task.spec.cuda is not None:
        return GpuMeter(task.folder, task.spec.cuda)
    return CpuMeter(task.folder, cpu_count(task.spec))


@dataclass(slots=True)
class CpuMeter:
    """Meter that reads the task's control groups, or else its processes."""

    folder: TaskFolder
    cpus: int
    _last: tuple[float, float] | None = None  # monotonic time, processor seconds

    def read(self) -> Usage:
        """See :class:`Meter`."""
        shim = self.folder.holder()
        below = descendants(shim) if shim else {}
        isolation = find_isolation(self.folder.state, self.folder.name)
        measured_s = isolation.cpu_s()
        spent_s = _spent_s(shim, below) if measured_s is None else measured_s
        memory_bytes = isolation.memory_bytes()
        if memory_bytes is None:
            memory_bytes = sum(resident_bytes(pid, found) for pid, found in below.items())
        return Usage(self._since_last(time.monotonic(), spent_s), memory_bytes)

    def _since_last(self, now_s: float, spent_s: float) -> float | None:
        before, self._last = self._last, (now_s, spent_s)
        if before is None or now_s <= before[0]:
            return None
        # A decrease: a process ended between being counted itself and in its parent.
        used = max(0.0, spent_s - before[1]) / (now_s - before[0])
        self._last = now_s, max(spent_s, before[1])
        return FULL_DEVICE_MILLI * used / self.cpus


class GpuMeter:
    """Meter that reads NVIDIA's driver; knows nothing without it, or without nvidia-ml-py.

    Parameters
    ----------
    cuda : tuple of int
        The task's GPUs, in the order of the PCI bus.
    nvml : module
        Replacement for pynvml; None for pynvml itself.
    """

    def __init__(self, folder: TaskFolder, cuda: tuple[int, ...], *, nvml: Any = None) -> None:
        self._folder = folder
        self._cuda = cuda
        self._nvml = load_pynvml() if nvml is None else nvml
        # The clock of the driver's timestamps.
        self._last_us = dict.fromkeys(cuda, time.time_ns() // 1000)

    def read(self) -> Usage:
        """See :class:`Meter`."""
        nvml, shim = self._nvml, self._folder.holder()
        if nvml is None:
            return Usage(None, None)
        pids = set(descendants(shim)) if shim else set()
        try:
            nvml.nvmlInit()
        except nvml.NVMLError:
            return Usage(None, None)
        try:
            return _combined([self._device_usage(number, pids) for number in self._cuda])
        except nvml.NVMLError:
            return Usage(None, None)
        finally:
            nvml.nvmlShutdown()

    def _device_usage(self, number: int, pids: set[int]) -> Usage:
        device = self._nvml.nvmlDeviceGetHandleByIndex(number)
        compute_milli = self._compute_milli(number, device, pids)
        return Usage(compute_milli, _memory(self._nvml, device, pids))

    def _compute_milli(self, number: int, device: Any, pids: set[int]) -> float | None:
        nvml = self._nvml
        try:
            samples = nvml.nvmlDeviceGetProcessUtilization(device, self._last_us[number])
        except nvml.NVMLError_NotFound:  # no use since the last call
            return 0.0
        except nvml.NVMLError:
            return None
        stamps = [sample.timeStamp for sample in samples]
        self._last_us[number] = max([self._last_us[number], *stamps])
        mine = ([s.smUtil for s in samples if s.pid == pid] for pid in pids)  # percent
        means = [FULL_DEVICE_MILLI / 100 * float(sum(u)) / len(u) for u in mine if u]
        return min(float(FULL_DEVICE_MILLI), sum(means))


def load_pynvml() -> Any:
    """Return the module pynvml; None if it is not installed."""
    try:
        import pynvml
    except ImportError:
        return None
    return pynvml


def _combined(parts: list[Usage]) -> Usage:
    """Return the mean of the compute and the sum of the memory of several GPUs."""
    milli = [part.compute_milli for part in parts if part.compute_milli is not None]
    memory = [part.memory_bytes for part in parts if part.memory_bytes is not None]
    return Usage(
        sum(milli) / len(milli) if len(milli) == len(parts) else None,
        sum(memory) if len(memory) == len(parts) else None,
    )


def _memory(nvml: Any, device: Any, pids: set[int]) -> int | None:
    try:
        running = nvml.nvmlDeviceGetComputeRunningProcesses(device)
    except nvml.NVMLError:
        return None
    mine = [process.usedGpuMemory for process in running if process.pid in pids]
    return None if None in mine else sum(mine)


def _spent_s(shim: int | None, below: dict[int, Stat]) -> float:
    reaped = stat(shim) if shim else None
    own = sum(found.cpu + found.cpu_of_reaped for found in below.values())
    return seconds(own + (0 if reaped is None else reaped.cpu_of_reaped))
