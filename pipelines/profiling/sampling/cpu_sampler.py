"""Sampler of the processor, from the kernel's counters."""

from __future__ import annotations

import os
import time
from collections.abc import Collection
from contextlib import suppress

import psutil

from presage.pipelines.profiling.sampling.device_sample import DeviceSample


class CpuSampler:
    """Processor time used by other processes, as the larger of two counts.

    The kernel's busy time minus the members' misses part of short bursts, because it is counted in
    ticks; the sum over all other processes misses those that ended. Time stolen by the hypervisor
    is foreign load, too.
    """

    def __init__(self) -> None:
        self._cores = sorted(os.sched_getaffinity(0))  # the set of cores, not only their number
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
        with suppress(psutil.Error):  # the process ended meanwhile
            times = psutil.Process(pid).cpu_times()
            seconds[pid] = times.user + times.system
    return seconds
