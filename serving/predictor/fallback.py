"""Fallback without predictions: every job gets an exclusive device.

A scheduler has to go on deciding while the prediction service is unavailable. Without a forecast it
allocates exclusive devices, like a scheduler without Presage.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from presage.errors import OverloadedError, ReleaseError, ServiceError
from presage.features.colocation import Colocation
from presage.features.device.device import Device
from presage.features.forecast import Forecast
from presage.features.placement import Placement
from presage.features.quantities.quantity import Quantity
from presage.features.quantities.quantity_registry import INTERFERENCE, job_quantities
from presage.features.scaling.scaling_request import (
    ScalingForecast,
    ScalingForecasts,
    ScalingRequest,
)
from presage.serving.predictor.prediction_backend import (
    DEFAULT_COVERAGE,
    ColocationForecast,
    JobForecast,
    PredictionBackend,
    ReleaseInfo,
    job_forecasts,
)

NO_RELEASE = ""  # release id of forecasts that no release made
# Errors of both backends when no prediction is available.
_UNAVAILABLE = (ServiceError, OverloadedError, ReleaseError)


class Fallback:
    """Prediction backend that returns conservative forecasts when another backend is unavailable.

    Limit the other backend to the time available for a decision: ``Fallback(PresageClient(target,
    timeout_s=0.02))``. Errors in the request are still raised; :meth:`device` and :meth:`release`
    have no fallback.
    """

    def __init__(self, backend: PredictionBackend) -> None:
        self._backend = backend

    def predict(
        self, placements: Sequence[Placement], *, coverage: float = DEFAULT_COVERAGE
    ) -> list[JobForecast]:
        """Return forecasts, or :func:`exclusive_device` of each placement."""
        try:
            return self._backend.predict(placements, coverage=coverage)
        except _UNAVAILABLE:
            return [exclusive_device(placement.device, coverage) for placement in placements]

    def predict_interference(
        self, colocations: Sequence[Colocation], *, coverage: float = DEFAULT_COVERAGE
    ) -> list[ColocationForecast]:
        """Return forecasts, or that co-located jobs do not fit."""
        try:
            return self._backend.predict_interference(colocations, coverage=coverage)
        except _UNAVAILABLE:
            return [_incompatible(colocation, coverage) for colocation in colocations]

    def predict_scaling(
        self, request: ScalingRequest, *, coverage: float = DEFAULT_COVERAGE
    ) -> ScalingForecasts:
        """Return forecasts, or that more GPUs than requested speed nothing up."""
        try:
            return self._backend.predict_scaling(request, coverage=coverage)
        except _UNAVAILABLE:
            return _without_speedup(request, coverage)

    def device(self, kind: str) -> Device:
        """Return the other backend's device of that kind."""
        return self._backend.device(kind)

    def release(self) -> ReleaseInfo:
        """Return the other backend's release."""
        return self._backend.release()


def exclusive_device(device: Device, coverage: float = DEFAULT_COVERAGE) -> JobForecast:
    """Return the out-of-domain forecast with the maximum of each quantity on a device."""

    def certain(quantity: Quantity) -> Forecast:
        most = quantity.limit(device)
        return Forecast(most, most, most, quantity.unit, False, NO_RELEASE, coverage)

    return job_forecasts({name: [certain(one)] for name, one in job_quantities().items()})[0]


def _incompatible(colocation: Colocation, coverage: float) -> ColocationForecast:
    is_solo = len(colocation.members) == 1
    slowdown = 1.0 if is_solo else math.inf
    forecast = Forecast(
        slowdown, slowdown, slowdown, INTERFERENCE.unit, False, NO_RELEASE, coverage
    )
    return ColocationForecast((forecast,) * len(colocation.members), is_solo, float(is_solo))


def _without_speedup(request: ScalingRequest, coverage: float) -> ScalingForecasts:
    def certain(value: float, unit: str) -> Forecast:
        return Forecast(value, value, value, unit, False, NO_RELEASE, coverage)

    forecasts = [
        ScalingForecast(
            certain(math.inf, "seconds"),
            certain(min(1.0, placement.gpus / request.requested.gpus), "speed-up"),
            0.0,
            True,
        )
        for placement in request.placements
    ]
    return ScalingForecasts(tuple(forecasts), NO_RELEASE, coverage, False)
