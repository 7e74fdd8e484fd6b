"""Forecasts of one job on several kinds of devices, ordered by step time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from presage.errors import PresageError
from presage.features.device.device import Device
from presage.features.job.job_description import JobFeatures
from presage.features.placement import Placement
from presage.serving.client.client import PresageClient
from presage.serving.predictor.prediction_backend import JobForecast


@dataclass(frozen=True, slots=True)
class DeviceForecast:
    """Forecast of a job on one kind of device."""

    device: Device
    forecast: JobForecast

    @property
    def fits(self) -> bool:
        """Whether the upper end of the predicted memory is not above the device's memory."""
        return self.forecast.memory_bytes.high <= self.device.memory_bytes


def device_forecasts(
    client: PresageClient, job: JobFeatures, devices: Sequence[Device]
) -> list[DeviceForecast]:
    """Return the forecasts of a job, by increasing step time.

    Raises
    ------
    PresageError
        The job has a forecast on none of the devices; the error is that of the first one.
    """
    answers = client.predict_each([Placement(job, one) for one in devices])
    found = list(_known(devices, answers))
    errors = [one for one in answers if isinstance(one, PresageError)]
    if not found and errors:
        raise errors[0]
    return sorted(found, key=lambda one: one.forecast.step_time_s.median)


def _known(
    devices: Sequence[Device], answers: Sequence[JobForecast | PresageError]
) -> Iterator[DeviceForecast]:
    for device, answer in zip(devices, answers, strict=True):
        if not isinstance(answer, PresageError):
            yield DeviceForecast(device, answer)
