"""What a prediction answers, and who can be asked: in process or over gRPC, it is the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Protocol

from presage.features.colocation import Colocation
from presage.features.device.device import Device
from presage.features.forecast import Forecast
from presage.features.placement import Placement

DEFAULT_COVERAGE = 0.8


@dataclass(frozen=True, slots=True)
class JobForecast:
    """Forecasts of one job that runs alone on its share of a device.

    Attributes
    ----------
    compute_utilization : Forecast
        Fraction of the device, within [0, 1].
    memory_bytes : Forecast
        Peak of the job.
    step_time_s, runtime_s : Forecast
        The runtime is start-up + iterations x step time.
    additional : mapping of str to Forecast
        Quantities of :mod:`presage.features.quantities.registry` without an attribute here, by
        forecast field.
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
    """What jobs on one device will do to each other.

    Attributes
    ----------
    slowdowns : tuple of Forecast
        Step time together / alone, in the order of the co-location's members; 1 for a lone job.
    fits : bool
        The members' median memory together is within the device's.
    fit_probability : float
        See :func:`presage.serving.predictor.memory_fit.fit_probability`.
    """

    slowdowns: tuple[Forecast, ...]
    fits: bool
    fit_probability: float


@dataclass(frozen=True, slots=True)
class RefusedRelease:
    """Why a release that was to be served is not."""

    reason: str
    at_unix_s: float


@dataclass(frozen=True, slots=True)
class ReleaseInfo:
    """What is being served.

    ``devices`` are all that can be named by kind: those the release was measured on, as
    calibrated, and the catalogue's. Only ``trained_devices`` are ever in domain.
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
    refused: RefusedRelease | None = None  # the last one that a server refused since


class PredictionBackend(Protocol):
    """Whoever predicts: :class:`~presage.serving.predictor.predictor.Predictor` in this process,
    :class:`~presage.serving.client.client.PresageClient` over gRPC.

    Either raises InvalidJobError for a job, device or share that cannot exist and for a coverage
    that the release has no interval for; ReleaseError (predictor) or ServiceError (client) when
    there is no prediction to be had.
    """

    def predict(
        self, placements: Sequence[Placement], *, coverage: float = DEFAULT_COVERAGE
    ) -> list[JobForecast]:
        """One forecast per placement, in order; none for none."""
        ...

    def predict_interference(
        self, colocations: Sequence[Colocation], *, coverage: float = DEFAULT_COVERAGE
    ) -> list[ColocationForecast]:
        """One forecast per co-location, in order; none for none."""
        ...

    def device(self, kind: str) -> Device:
        """The device of that kind as the release knows it; ask once and keep it.

        Raises
        ------
        UnknownDeviceError
            Names the nearest kind that is known.
        """
        ...

    def release(self) -> ReleaseInfo:
        """What predicts."""
        ...
