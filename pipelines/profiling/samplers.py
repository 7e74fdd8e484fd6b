"""What the device did during a window, seen from outside the jobs."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import psutil

from presage.features.device import Device


@dataclass(frozen=True, slots=True)
class DeviceSample:
    """One window. None where the driver does not say.

    Attributes
    ----------
    compute_utilization : float or None
        Share of the window in which the device computed; None on a CPU, where each job counts
        its own CPU time exactly.
    foreign_load : float or None
        Share of the device that processes other than the members used.
    memory_bytes : Mapping[int, int]
        Most device memory seen, by process id.
    """

    compute_utilization: float | None
    foreign_load: float | None
    memory_bytes: Mapping[int, int] = field(default_factory=dict)


class Sampler(Protocol):
    """Watches a device from ``start`` to ``stop``."""

    def start(self, pids: Collection[int]) -> None:
        """Begin a window in which ``pids`` are the members."""

    def stop(self) -> DeviceSample:
        """End the window."""


class CpuSampler:
    """Busy time of this process's cores, less the members' own CPU time.

    Time stolen by the hypervisor is foreign too. Resolution is a kernel tick of 10 ms per core.
    """

    def __init__(self) -> None:
        self._cores = sorted(os.sched_getaffinity(0))
        self._members: list[psutil.Process] = []
        self._start = (0.0, 0.0, 0.0)

    def start(self, pids: Collection[int]) -> None:
        self._members = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
        self._start = self._read()

    def stop(self) -> DeviceSample:
        wall, busy, own = (now - then for now, then in zip(self._read(), self._start, strict=True))
        foreign = (busy - own) / (wall * len(self._cores))
        return DeviceSample(compute_utilization=None, foreign_load=max(0.0, foreign))

    def _read(self) -> tuple[float, float, float]:
        """Wall clock, busy seconds of all cores, CPU seconds of the members."""
        per_core = psutil.cpu_times(percpu=True)
        busy = sum(
            t.user + t.nice + t.system + t.irq + t.softirq + t.steal
            for t in (per_core[core] for core in self._cores)
        )
        return time.monotonic(), busy, sum(map(_cpu_seconds, self._members))


def _cpu_seconds(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.Error:  # it died, which its own answer will tell
        return 0.0
    return float(times.user + times.system)


class NvmlSampler:
    """Polls NVIDIA's driver in a thread; ``driver`` is pynvml, or what has its functions."""

    def __init__(self, driver: Any = None, *, period_s: float = 0.1, index: int = 0) -> None:
        if driver is None:
            import pynvml as driver
        self._driver = driver
        self._driver.nvmlInit()
        self._handle = self._driver.nvmlDeviceGetHandleByIndex(index)
        self._period_s = period_s

    def start(self, pids: Collection[int]) -> None:
        self._pids = frozenset(pids)
        self._utilization: list[float] = []
        self._memory_bytes: dict[int, int] = {}
        self._since_us = time.time_ns() // 1000
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._poll, daemon=True)
        self._thread.start()

    def stop(self) -> DeviceSample:
        self._stopping.set()
        self._thread.join()
        utilization = _mean(self._utilization)
        # Without members all that the device does is foreign.
        foreign = self._foreign_load() if self._pids else utilization
        members = {pid: size for pid, size in self._memory_bytes.items() if pid in self._pids}
        return DeviceSample(utilization, foreign, members)

    def _poll(self) -> None:
        while True:
            try:
                self._sample()
            except self._driver.NVMLError:
                pass  # a driver that does not answer once may answer next time
            if self._stopping.wait(self._period_s):
                return

    def _sample(self) -> None:
        rates = self._driver.nvmlDeviceGetUtilizationRates(self._handle)
        self._utilization.append(rates.gpu / 100)
        for process in self._driver.nvmlDeviceGetComputeRunningProcesses(self._handle):
            size = process.usedGpuMemory or 0  # None where the driver keeps it from a container
            self._memory_bytes[process.pid] = max(size, self._memory_bytes.get(process.pid, 0))

    def _foreign_load(self) -> float | None:
        """Mean utilization by processes that are not members."""
        try:
            samples = self._driver.nvmlDeviceGetProcessUtilization(self._handle, self._since_us)
        except self._driver.NVMLError:
            return None
        foreign: dict[int, list[float]] = {}
        for sample in samples:
            if sample.pid not in self._pids:
                foreign.setdefault(sample.pid, []).append(sample.smUtil / 100)
        return min(1.0, sum(_mean(values) or 0.0 for values in foreign.values()))


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def make_sampler(device: Device) -> Sampler:
    """The sampler for that device."""
    return NvmlSampler() if is_gpu(device) else CpuSampler()


def is_gpu(device: Device) -> bool:
    """Whether jobs run by CUDA on it."""
    return device.compute_capability > 0
