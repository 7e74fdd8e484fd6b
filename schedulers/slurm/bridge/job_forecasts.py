"""Forecasts of a submitted job on its devices, at the quantile and the risk of the bridge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from presage.features.device.device import Device
from presage.features.forecast import Forecast
from presage.features.job.job_description import JobFeatures
from presage.features.placement import Placement
from presage.features.scaling.scaling_request import (
    GpuPlacement,
    ScalingForecasts,
    ScalingRequest,
)
from presage.schedulers.slurm.bridge.decide import DecisionOptions
from presage.serving.predictor.prediction_backend import JobForecast


class Backend(Protocol):
    """Part of :class:`presage.serving.predictor.prediction_backend.PredictionBackend` used here."""

    def predict(self, placements: Sequence[Placement], *, coverage: float) -> list[JobForecast]:
        """Return one forecast per placement."""
        ...

    def predict_scaling(self, request: ScalingRequest, *, coverage: float) -> ScalingForecasts:
        """Return the forecasts of one job at several numbers of GPUs and nodes."""
        ...

    def device(self, kind: str) -> Device:
        """Return the device of a kind."""
        ...


class JobForecasts:
    """Source of a job's forecasts whose upper ends are what the bridge requests.

    Parameters
    ----------
    options : DecisionOptions
        Their ``quantile`` is the upper end of the run time, one minus their ``risk`` that of the
        memory; at a risk of 0.5 it is the median.
    """

    def __init__(self, backend: Backend, options: DecisionOptions) -> None:
        self._backend = backend
        self._of_time = round(2 * options.quantile - 1, 6)  # coverages of the intervals
        self._of_memory = round(1 - 2 * options.risk, 6)
        self._devices: dict[str, Device] = {}

    def device(self, kind: str) -> Device:
        """Return the device of a kind, as it was read last.

        Raises
        ------
        UnknownDeviceError
            The kind is unknown.
        """
        if kind not in self._devices:
            self.read_device(kind)
        return self._devices[kind]

    def read_device(self, kind: str) -> None:
        """Read a device from the predictor, whose new release may have other calibrations.

        Raises
        ------
        PresageError
            The kind is unknown, or the predictor cannot be reached.
        """
        self._devices[kind] = self._backend.device(kind)

    def forecast(self, job: JobFeatures, device: Device, gpus: int, nodes: int) -> JobForecast:
        """Return the forecast of a job on ``gpus`` devices of ``nodes`` nodes.

        Memory and utilization are those of one device. For several devices the step includes their
        synchronization, and the features' batch size is that of each device.

        Raises
        ------
        PresageError
            No forecast is available, or the job cannot exist.
        """
        placement = Placement(job, device)
        (found,) = self._backend.predict([placement], coverage=self._of_time)
        if not self._of_memory:  # the median, for which there is no interval
            memory = found.memory_bytes
            found = replace(found, memory_bytes=replace(memory, high=memory.median))
        elif self._of_memory != self._of_time:
            (other,) = self._backend.predict([placement], coverage=self._of_memory)
            found = replace(other, runtime_s=found.runtime_s, step_time_s=found.step_time_s)
        if gpus > 1:
            size = GpuPlacement(gpus, nodes)
            request = ScalingRequest(job, device, (size,), size)
            scaled = self._backend.predict_scaling(request, coverage=self._of_time)
            found = _with_step(found, scaled.forecasts[0].step_time_s, job.job.iterations)
        return found


def _with_step(solo: JobForecast, step_s: Forecast, iterations: int) -> JobForecast:
    """Return a forecast with another step time; its start-up time is that of the solo job."""
    runtime = solo.runtime_s
    setup_s = [
        max(0.0, of_run - iterations * of_step)
        for of_run, of_step in (
            (runtime.low, solo.step_time_s.low),
            (runtime.median, solo.step_time_s.median),
            (runtime.high, solo.step_time_s.high),
        )
    ]
    low, median, high = (
        setup + iterations * step
        for setup, step in zip(
            sorted(setup_s), (step_s.low, step_s.median, step_s.high), strict=True
        )
    )
    is_known = runtime.in_domain and step_s.in_domain
    return replace(
        solo,
        step_time_s=step_s,
        runtime_s=replace(runtime, low=low, median=median, high=high, in_domain=is_known),
    )
