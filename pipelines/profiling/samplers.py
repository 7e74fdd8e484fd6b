"""What the device did during a window, seen from outside the jobs."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
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
    """Processor time that others used, by the larger of two counts.

    The kernel's busy time less the members' misses part of what runs in short bursts, since it
    is counted by ticks; the sum over all other processes misses those that have ended. Time
    stolen by the hypervisor is foreign too.
    """

    def __init__(self) -> None:
        self._cores = sorted(os.sched_getaffinity(0))  # which, not only how many
        self._pids: frozenset[int] = frozenset()
        self._start_s = self._busy_s = 0.0
        self._by_pid: dict[int, float] = {}

    def start(self, pids: Collection[int]) -> None:  # noqa: D102 - as in Sampler
        self._pids = frozenset(pids)
        self._start_s = time.monotonic()
        self._busy_s, self._by_pid = self._busy(), _cpu_s_by_pid()

    def stop(self) -> DeviceSample:  # noqa: D102
        busy_s, now = self._busy() - self._busy_s, _cpu_s_by_pid()
        capacity_s = (time.monotonic() - self._start_s) * len(self._cores)
        used_s = {pid: max(0.0, cpu_s - self._by_pid.get(pid, 0.0)) for pid, cpu_s in now.items()}
        members_s = sum(used_s.get(pid, 0.0) for pid in self._pids)
        others_s = max(busy_s - members_s, sum(used_s.values()) - members_s)
        return DeviceSample(compute_utilization=None, foreign_load=others_s / capacity_s)

    def _busy(self) -> float:
        per_core = psutil.cpu_times(percpu=True)
        return sum(
            t.user + t.nice + t.system + t.irq + t.softirq + t.steal
            for t in (per_core[core] for core in self._cores)
        )


def _cpu_s_by_pid() -> dict[int, float]:
    seconds = {}
    for pid in psutil.pids():
        with suppress(psutil.Error):  # it ended meanwhile
            times = psutil.Process(pid).cpu_times()
            seconds[pid] = times.user + times.system
    return seconds


class NvmlSampler:
    """Polls NVIDIA's driver in a thread; ``driver`` is pynvml, or what has its functions."""

    def __init__(self, driver: Any = None, *, period_s: float = 0.1, index: int = 0) -> None:
        import pynvml

        self._driver = pynvml if driver is None else driver
        self._driver.nvmlInit()
        self._handle = self._driver.nvmlDeviceGetHandleByIndex(index)
        self._period_s = period_s

    def start(self, pids: Collection[int]) -> None:  # noqa: D102 - as in Sampler
        self._pids = frozenset(pids)
        self._utilization: list[float] = []
        self._memory_bytes: dict[int, int] = {}
        self._since_us = time.time_ns() // 1000
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._poll, daemon=True)
        self._thread.start()

    def stop(self) -> DeviceSample:  # noqa: D102
        self._stopping.set()
        self._thread.join()
        utilization = _mean(self._utilization)
        # Without members all that the device does is foreign.
        foreign = self._foreign_load() if self._pids else utilization
        members = {pid: size for pid, size in self._memory_bytes.items() if pid in self._pids}
        return DeviceSample(utilization, foreign, members)

    def _poll(self) -> None:
        while True:
            with suppress(self._driver.NVMLError):  # it may answer the next time
                self._sample()
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
