"""Sampler of an NVIDIA GPU, from its driver."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from presage.errors import ProfilingError
from presage.pipelines.profiling.sampling.dcgm import Dcgm, dcgm_is_installed
from presage.pipelines.profiling.sampling.device_sample import DeviceSample
from presage.pipelines.profiling.sampling.gpm import Gpm
from presage.pipelines.profiling.sampling.nvml_device import NvmlDevice
from presage.pipelines.profiling.sampling.nvml_readings import (
    Stamped,
    foreign_share,
    later_mean,
    load_by_process,
    members_memory,
    newest_us,
    stamped,
    time_weighted,
)
from presage.pipelines.profiling.sampling.sm_counters import FallbackCounters, SmCounters, SmReading

PATIENCE_S = 10.0  # timeout of the driver; one that hangs counts as lost

# Reasons for a clock below the maximum: power cap, hardware slowdown, heat, power brake. Idle, an
# application's own setting and the display are not throttling.
THROTTLED = 0x4 | 0x8 | 0x20 | 0x40 | 0x80

# Clients of MPS are in a separate list.
PROCESS_LISTS = ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetMPSComputeRunningProcesses")


@dataclass
class _Readings:
    """Readings of one window: lists are polled, the other values are read at its end."""

    busy: list[tuple[float, float]] = field(default_factory=list)  # seconds since the start, share
    power_w: list[float] = field(default_factory=list)
    clock_mhz: list[float] = field(default_factory=list)
    throttled: list[bool] = field(default_factory=list)
    used_bytes: list[int] = field(default_factory=list)
    memory_bytes: dict[int, int] = field(default_factory=dict)  # maximum of every process
    samples: list[Stamped] = field(default_factory=list)
    loads: dict[int, float] | None = None
    window_s: float = 0.0


class NvmlSampler:
    """Polls the driver in a thread, and reads the driver's own samples at the end of the window.

    Utilization is the driver's own samples or, if the driver keeps none, the polled values.
    ``driver`` is pynvml, or has its functions.

    Raises
    ------
    ProfilingError
        The GPU or its driver is gone, at creation, start or stop.
    """

    def __init__(
        self,
        driver: Any = None,
        *,
        period_s: float = 0.1,
        memory_before_bytes: int | None = None,
        counters: SmCounters | None = None,
    ) -> None:
        self._gpu = NvmlDevice(driver)
        self._period_s = period_s
        self._memory_before_bytes = memory_before_bytes
        self._counters = counters or sm_counters(self._gpu)

    def start(self, pids: Collection[int]) -> None:  # noqa: D102 - as in Sampler
        self._pids = frozenset(pids)
        self._readings = _Readings()
        self._error: Exception | None = None
        self._before_us = newest_us(self._samples(0))
        self._loads_before_us = newest_us(
            (sample.timeStamp, 0.0) for sample in self._process_samples(0) or ()
        )
        self._energy_mj = self._gpu.query("nvmlDeviceGetTotalEnergyConsumption")
        if self._pids:  # an idle check needs no counters
            self._counters.start()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._start_s = time.monotonic()
        self._thread.start()

    def stop(self) -> DeviceSample:  # noqa: D102
        self._stopping.set()
        self._thread.join(PATIENCE_S)
        if self._thread.is_alive():  # the counters query the driver, too, and would hang
            raise ProfilingError(
                f"NVML did not respond for {PATIENCE_S:g} s; see `dmesg` for an Xid, and run the "
                "same command again when `nvidia-smi` works"
            )
        sm = self._counters.stop() if self._pids else SmReading()
        if self._error is not None:
            raise self._error
        return self._sample(sm)

    def _sample(self, sm: SmReading) -> DeviceSample:
        readings, utilization = self._readings, self._utilization()
        return DeviceSample(
            compute_utilization=utilization,
            foreign_load=foreign_share(
                readings.loads,
                members=self._pids,
                listed=readings.memory_bytes.keys(),
                utilization=utilization,
            ),
            memory_bytes=members_memory(
                readings.memory_bytes,
                members=self._pids,
                used_bytes=max(readings.used_bytes, default=None),
                before_bytes=self._memory_before_bytes,
            ),
            sm_activity=sm.activity,
            sm_occupancy=sm.occupancy,
            power_w=statistics.fmean(readings.power_w) if readings.power_w else None,
            sm_clock_mhz=statistics.median(readings.clock_mhz) if readings.clock_mhz else None,
            throttled=any(readings.throttled) if readings.throttled else None,
        )

    def _utilization(self) -> float | None:
        readings = self._readings
        percent = time_weighted(
            readings.samples, after_us=self._before_us, window_us=1e6 * readings.window_s
        )
        if percent is None:
            return later_mean(readings.busy, window_s=readings.window_s)
        return min(1.0, percent / 100)

    def _watch(self) -> None:
        try:
            while True:
                self._poll()
                if self._stopping.wait(self._period_s):
                    break
            self._read_the_end()
        except Exception as error:  # stop() raises it again in the main thread
            self._error = error

    def _poll(self) -> None:
        gpu, readings = self._gpu, self._readings
        if (rates := gpu.query("nvmlDeviceGetUtilizationRates")) is not None:
            readings.busy.append((time.monotonic() - self._start_s, rates.gpu / 100))
        if self._energy_mj is None and (mw := gpu.query("nvmlDeviceGetPowerUsage")) is not None:
            readings.power_w.append(mw / 1e3)
        if (mhz := gpu.query("nvmlDeviceGetClockInfo", gpu.driver.NVML_CLOCK_SM)) is not None:
            readings.clock_mhz.append(float(mhz))
        reasons = gpu.query("nvmlDeviceGetCurrentClocksEventReasons")
        if reasons is None:  # its name before driver 535
            reasons = gpu.query("nvmlDeviceGetCurrentClocksThrottleReasons")
        if reasons is not None:
            readings.throttled.append(bool(reasons & THROTTLED))
        self._poll_memory()

    def _poll_memory(self) -> None:
        most = self._readings.memory_bytes
        if (used_bytes := self._gpu.memory_used_bytes()) is not None:
            self._readings.used_bytes.append(used_bytes)
        for question in PROCESS_LISTS:
            for process in self._gpu.query(question) or ():
                size = process.usedGpuMemory or 0  # None if the driver does not report it
                most[process.pid] = max(size, most.get(process.pid, 0))

    def _read_the_end(self) -> None:
        readings = self._readings
        readings.window_s = time.monotonic() - self._start_s
        energy_mj = self._gpu.query("nvmlDeviceGetTotalEnergyConsumption")
        if self._energy_mj is not None and energy_mj is not None:
            readings.power_w = [(energy_mj - self._energy_mj) / 1e3 / readings.window_s]
        readings.samples = self._samples(self._before_us)
        loads = self._process_samples(self._loads_before_us)
        if loads is not None:
            by_pid = load_by_process(loads, after_us=self._loads_before_us)
            # The MPS server computes on behalf of its clients.
            readings.loads = {pid: load for pid, load in by_pid.items() if not is_mps_server(pid)}

    def _samples(self, since_us: int) -> list[Stamped]:
        kind = self._gpu.driver.NVML_GPU_UTILIZATION_SAMPLES
        return stamped(self._gpu.query("nvmlDeviceGetSamples", kind, since_us))

    def _process_samples(self, since_us: int) -> Sequence[Any] | None:
        question = "nvmlDeviceGetProcessUtilization"
        found: Sequence[Any] | None = self._gpu.query(question, since_us, empty=())
        return found


def sm_counters(gpu: NvmlDevice) -> SmCounters:
    """Return DCGM's counters if its command exists, and NVML's own monitor."""
    index = gpu.query("nvmlDeviceGetIndex")
    dcgm: list[SmCounters] = [Dcgm(index or 0)] if dcgm_is_installed() else []
    return FallbackCounters([*dcgm, Gpm(gpu)])


def is_mps_server(pid: int) -> bool:
    """Return whether the process computes on behalf of MPS's clients."""
    try:
        return b"nvidia-cuda-mps-server" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
