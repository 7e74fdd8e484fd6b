"""Forecasts and the interface of prediction backends, the same in process and over gRPC."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Protocol

from presage.features.colocation import Colocation
from presage.features.device.device import Device
from presage.features.forecast import Forecast
from presage.features.placement import Placement
from presage.features.scaling.scaling_request import ScalingForecasts, ScalingRequest

DEFAULT_COVERAGE = 0.8


@dataclass(frozen=True, slots=True)
class JobForecast:
    """Forecasts of one job that runs solo on its share of a device.

    Attributes
    ----------
    compute_utilization : Forecast
        Fraction of the device, within [0, 1].
    memory_bytes : Forecast
        Peak of the job.
    step_time_s, runtime_s : Forecast
        The runtime is start-up + iterations x step time.
    additional : mapping of str to Forecast
        Quantities of :mod:`presage.features.quantities.quantity_registry` without an attribute
        here, by forecast field.
    """

    compute_utilization: Forecast
    memory_bytes: Forecast
    step_time_s: Forecast
    runtime_s: Forecast
    additional: Mapping[str, Forecast] = field(default_factory=dict, hash=False)

    def by_field(self) -> dict[str, Forecast]:
        """Return every forecast by its field, the additional ones last."""
        return {name: getattr(self, name) for name in _ATTRIBUTES} | dict(self.additional)


_ATTRIBUTES = tuple(one.name for one in fields(JobForecast) if one.name != "additional")


def job_forecasts(by_field: Mapping[str, Sequence[Forecast]]) -> list[JobForecast]:
    """Return one JobForecast for each row, of the rows' forecasts by field."""
    others = [name for name in by_field if name not in _ATTRIBUTES]
    rows = zip(*(by_field[name] for name in _ATTRIBUTES), strict=True)
    if not others:
        return [JobForecast(*row) for row in rows]
    more = zip(*(by_field[name] for name in others), strict=True)
    return [
        replace(JobForecast(*row), additional=dict(zip(others, additional, strict=True)))
        for row, additional in zip(rows, more, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class ColocationForecast:
    """Forecast of co-located jobs on one device.

    Attributes
    ----------
    slowdowns : tuple of Forecast
        Co-located / solo step time in the order of the co-location's members; 1 for a single job.
    fits : bool
        Whether the sum of the members' median memory is within the device's memory.
    fit_probability : float
        See :func:`presage.serving.predictor.memory_fit.fit_probability`.
    """

    slowdowns: tuple[Forecast, ...]
    fits: bool
    fit_probability: float


@dataclass(frozen=True, slots=True)
class RefusedRelease:
    """Release that a server rejected: the reason and the Unix time."""

    reason: str
    at_unix_s: float


@dataclass(frozen=True, slots=True)
class ReleaseInfo:
    """Description of a served release.

    ``devices`` are all devices that can be named by kind: the measured ones, as calibrated for the
    release, and those of the catalogue. Only ``trained_devices`` can be in domain.
    """

    release_id: str
    schema_hash: str
    columns: tuple[str, ...]
    op_kinds: tuple[str, ...]
    levels: tuple[float, ...]
    devices: Mapping[str, Device]
    trained_devices: frozenset[str]
    metrics: Mapping[str, Any]
    loaded_at_unix_s: float
    refused: RefusedRelease | None = None  # newest release, if the server rejected it


class PredictionBackend(Protocol):
    """Interface of predictions.

    Implementations are :class:`~presage.serving.predictor.predictor.Predictor` in this process and
    :class:`~presage.serving.client.client.PresageClient` over gRPC. Both raise InvalidJobError for
    an impossible job, device or share and for a coverage without an interval in the release, and
    ReleaseError (predictor) or ServiceError (client) if no prediction is available.
    """

    def predict(
        self, placements: Sequence[Placement], *, coverage: float = DEFAULT_COVERAGE
    ) -> list[JobForecast]:
        """Return one forecast per placement, in order."""
        ...

    def predict_interference(
        self, colocations: Sequence[Colocation], *, coverage: float = DEFAULT_COVERAGE
    ) -> list[ColocationForecast]:
        """Return one forecast per co-location, in order."""
        ...

    def predict_scaling(
        self, request: ScalingRequest, *, coverage: float = DEFAULT_COVERAGE
    ) -> ScalingForecasts:
        """Return the forecasts of one job at several numbers of GPUs and nodes."""
        ...

    def device(self, kind: str) -> Device:
        """Return the release's data of a device kind; cache the result.

        Raises
        ------
        UnknownDeviceError
            The kind is unknown; names the nearest known kind.
        """
        ...

    def release(self) -> ReleaseInfo:
        """Return the release that predicts."""
        ...
