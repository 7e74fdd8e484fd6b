"""A registered release as MLflow's own commands load it: ``mlflow models predict`` and ``serve``.

Rows in are what a person has: a job, as ``presage features MODEL --json`` writes it, and a kind
of device. Rows out are the forecasts that the service gives. What MLflow has to know of it is
written by :mod:`presage.models.registry.mlflow_model_files`, when a release is registered; neither
MLflow nor pandas is imported here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from presage.errors import InvalidJobError
from presage.features.colocation import Colocation
from presage.features.device.device import Device, Share
from presage.features.forecast import Forecast
from presage.features.job.job import JobFeatures
from presage.features.placement import Placement
from presage.features.quantities.registry import INTERFERENCE
from presage.models.release.release import load_release
from presage.serving.client import job_features
from presage.serving.predictor.forecasts import DEFAULT_COVERAGE
from presage.serving.predictor.predictor import Predictor

TOGETHER = "time-slice"  # how jobs of a co-location share their device

Row = dict[str, Any]


class ReleaseModel:
    """What MLflow calls a Python model."""

    def __init__(self, predictor: Predictor) -> None:
        self._predictor = predictor

    def predict(self, model_input: Any, params: Mapping[str, Any] | None = None) -> list[Row]:
        """A forecast of each row, in order.

        Parameters
        ----------
        model_input : DataFrame
            ``job`` (job features: an object, or its JSON text), ``device`` (a kind), and, of
            jobs that share a device, the same text in ``colocation``; without it a job runs alone.
        params : mapping
            ``coverage`` of the intervals, 0.8 where it is not said.

        Raises
        ------
        InvalidJobError, UnknownDeviceError
            A row cannot be; names the row.
        """
        rows: list[Row] = model_input.to_dict(orient="records")
        coverage = float((params or {}).get("coverage", DEFAULT_COVERAGE))
        jobs = [_job(row["job"], position) for position, row in enumerate(rows)]
        devices = {kind: self._predictor.device(kind) for kind in {row["device"] for row in rows}}
        placed = [Placement(j, devices[r["device"]]) for j, r in zip(jobs, rows, strict=True)]
        forecasts = self._predictor.predict(placed, coverage=coverage)
        out = [
            {
                "job_id": job.job.job_id,
                "device": row["device"],
                "release_id": self._predictor.release_id,
            }
            | {
                name: value
                for quantity, one in forecast.by_field().items()
                for name, value in _told(quantity, one).items()
            }
            for job, row, forecast in zip(jobs, rows, forecasts, strict=True)
        ]
        self._add_slowdowns(out, rows, placed, coverage)
        return out

    def _add_slowdowns(
        self, out: list[Row], rows: Sequence[Row], placed: Sequence[Placement], coverage: float
    ) -> None:
        """To the rows of jobs that share a device."""
        for name, positions in _together(rows).items():
            device = _common_device(name, [placed[i].device for i in positions])
            members = tuple(placed[i].job for i in positions)
            shares = (Share(mode=TOGETHER),) * len(members)
            told = self._predictor.predict_interference(
                [Colocation(device, members, shares)], coverage=coverage
            )[0]
            for position, slowdown in zip(positions, told.slowdowns, strict=True):
                out[position] |= _told(INTERFERENCE.forecast_field, slowdown)
                out[position] |= {"fits": told.fits, "fit_probability": told.fit_probability}


def _load_pyfunc(path: str) -> ReleaseModel:
    """What MLflow calls to load the release at ``path``, whose files are checked as ever."""
    return ReleaseModel(Predictor(load_release(Path(path))))


def _job(value: object, position: int) -> JobFeatures:
    text = value if isinstance(value, str) else json.dumps(value)
    return job_features.from_json(text, source=f"row {position}: job")


def _told(name: str, forecast: Forecast) -> Row:
    return {
        f"{name}_median": forecast.median,
        f"{name}_low": forecast.low,
        f"{name}_high": forecast.high,
        f"{name}_in_domain": forecast.in_domain,
    }


def _together(rows: Iterable[Row]) -> dict[str, list[int]]:
    """Positions of the rows of each co-location."""
    found: dict[str, list[int]] = {}
    for position, row in enumerate(rows):
        name = row.get("colocation")
        if isinstance(name, str) and name:  # pandas has None, or NaN, where a row has none
            found.setdefault(name, []).append(position)
    return found


def _common_device(name: str, devices: Sequence[Device]) -> Device:
    kinds = sorted({device.kind for device in devices})
    if len(kinds) > 1:
        raise InvalidJobError(
            f"co-location {name!r} is on {', '.join(kinds)}; jobs of one share one device"
        )
    return devices[0]
