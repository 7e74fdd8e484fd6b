"""What to believe when nobody answers: that a job needs a device for itself.

A scheduler must go on deciding. Without a forecast it may still place jobs, as one without
Presage would: each alone on a whole device.
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
from presage.features.quantities.registry import INTERFERENCE, job_quantities
from presage.serving.predictor.forecasts import (
    DEFAULT_COVERAGE,
    ColocationForecast,
    JobForecast,
    PredictionBackend,
    ReleaseInfo,
    job_forecasts,
)

NO_RELEASE = ""  # the release id of what nobody foretold
# What either backend raises where there is no prediction to be had.
_NO_ANSWER = (ServiceError, OverloadedError, ReleaseError)


class Fallback:
    """A backend that answers for another one when that one does not.

    Give the other one the time that there is to decide: ``Fallback(PresageClient(target,
    timeout_s=0.02))``. Errors of the question are raised as ever; :meth:`device` and
    :meth:`release` have no substitute.
    """

    def __init__(self, backend: PredictionBackend) -> None:
        self._backend = backend

    def predict(
        self, placements: Sequence[Placement], *, coverage: float = DEFAULT_COVERAGE
    ) -> list[JobForecast]:
        """Forecasts, or :func:`whole_device` of each placement."""
        try:
            return self._backend.predict(placements, coverage=coverage)
        except _NO_ANSWER:
            return [whole_device(placement.device, coverage) for placement in placements]

    def predict_interference(
        self, colocations: Sequence[Colocation], *, coverage: float = DEFAULT_COVERAGE
    ) -> list[ColocationForecast]:
        """Forecasts, or that several jobs do not go together."""
        try:
            return self._backend.predict_interference(colocations, coverage=coverage)
        except _NO_ANSWER:
            return [_apart(colocation, coverage) for colocation in colocations]

    def device(self, kind: str) -> Device:
        """As the other one knows it."""
        return self._backend.device(kind)

    def release(self) -> ReleaseInfo:
        """What the other one serves."""
        return self._backend.release()


def whole_device(device: Device, coverage: float = DEFAULT_COVERAGE) -> JobForecast:
    """Return the most that each quantity can be on a device, out of domain."""

    def certain(quantity: Quantity) -> Forecast:
        most = quantity.limit(device)
        return Forecast(most, most, most, quantity.unit, False, NO_RELEASE, coverage)

    return job_forecasts({name: [certain(one)] for name, one in job_quantities().items()})[0]


def _apart(colocation: Colocation, coverage: float) -> ColocationForecast:
    lone = len(colocation.members) == 1
    slowdown = 1.0 if lone else math.inf
    forecast = Forecast(
        slowdown, slowdown, slowdown, INTERFERENCE.unit, False, NO_RELEASE, coverage
    )
    return ColocationForecast((forecast,) * len(colocation.members), lone, float(lone))
