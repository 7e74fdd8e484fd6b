"""SM activity from NVML's performance monitor (GPM): Hopper and later, without DCGM."""

from __future__ import annotations

from typing import Any

from presage.pipelines.profiling.sampling.nvml_device import NvmlDevice
from presage.pipelines.profiling.sampling.sm_counters import SmReading


class Gpm:
    """Two readings of the counters, at start and stop; NVML computes means of their difference.

    NVML requires at least 0.1 s between them. On a GPU before Hopper, or in MIG mode, it is not
    supported, and readings are empty.
    """

    def __init__(self, device: NvmlDevice) -> None:
        self._device = device
        support = device.query("nvmlGpmQueryDeviceSupport")
        self._supported = support is not None and bool(support.isSupportedDevice)
        self._first: Any = None

    def start(self) -> None:  # noqa: D102 - as in SmCounters
        self._first = self._sample() if self._supported else None

    def stop(self) -> SmReading:  # noqa: D102
        first, self._first = self._first, None
        second = None if first is None else self._sample()
        try:
            return SmReading() if second is None else self._difference(first, second)
        finally:
            self._free(first, second)

    def _sample(self) -> Any:
        driver = self._device.driver
        try:
            sample = driver.nvmlGpmSampleAlloc()
        except driver.NVMLError:
            return None
        if self._device.query("nvmlGpmSampleGet", sample) is None:
            self._free(sample)
            return None
        return sample

    def _difference(self, first: Any, second: Any) -> SmReading:
        driver = self._device.driver
        request = driver.c_nvmlGpmMetricsGet_t()
        request.version = driver.NVML_GPM_METRICS_GET_VERSION
        request.sample1, request.sample2 = first, second
        metrics = (driver.NVML_GPM_METRIC_SM_UTIL, driver.NVML_GPM_METRIC_SM_OCCUPANCY)
        request.numMetrics = len(metrics)
        for place, metric in enumerate(metrics):
            request.metrics[place].metricId = metric
        try:
            driver.nvmlGpmMetricsGet(request)
        except driver.NVMLError:
            return SmReading()
        return SmReading(*(_share(request.metrics[place], driver) for place in range(len(metrics))))

    def _free(self, *samples: Any) -> None:
        driver = self._device.driver
        for sample in samples:
            if sample is not None:
                driver.nvmlGpmSampleFree(sample)


def _share(metric: Any, driver: Any) -> float | None:
    if metric.nvmlReturn != driver.NVML_SUCCESS:
        return None
    percent = float(metric.value)
    return percent / 100 if 0 <= percent <= 100 else None  # also None for NaN
