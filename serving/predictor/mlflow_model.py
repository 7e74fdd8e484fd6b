"""MLflow Python model of a registered release, for ``mlflow models predict`` and ``serve``.

Input rows contain a job, as ``presage features MODEL --json`` writes it, and a device kind. Output
rows contain the forecasts of the prediction service. The files that MLflow needs are written by
:mod:`presage.models.registry.mlflow_model_files` when a release is registered; neither MLflow nor
pandas is imported here.
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
from presage.features.job.job_description import JobFeatures
from presage.features.placement import Placement
from presage.features.quantities.quantity_registry import INTERFERENCE
from presage.models.release.release import load_release
from presage.serving.client import job_features
from presage.serving.predictor.prediction_backend import DEFAULT_COVERAGE
from presage.serving.predictor.predictor import Predictor

SHARING_MODE = "time-slice"  # of co-located jobs

Row = dict[str, Any]


class ReleaseModel:
    """MLflow Python model that predicts with a release."""

    def __init__(self, predictor: Predictor) -> None:
        self._predictor = predictor

    def predict(self, model_input: Any, params: Mapping[str, Any] | None = None) -> list[Row]:
        """Return one forecast per row, in order.

        Parameters
        ----------
        model_input : DataFrame
            Columns ``job`` (job features as an object or JSON text), ``device`` (a kind) and
            optionally ``colocation`` (the same text for all jobs that share a device; jobs without
            it run solo).
        params : mapping
            ``coverage`` of the intervals; 0.8 by default.

        Raises
        ------
        InvalidJobError, UnknownDeviceError
            A row is invalid; names the row.
        """
        rows: list[Row] = model_input.to_dict(orient="records")
        coverage = float((params or {}).get("coverage", DEFAULT_COVERAGE))
        jobs = [_job(row["job"], position) for position, row in enumerate(rows)]
        devices = {kind: self._predictor.device(kind) for kind in {row["device"] for row in rows}}
        placements = [Placement(j, devices[r["device"]]) for j, r in zip(jobs, rows, strict=True)]
        forecasts = self._predictor.predict(placements, coverage=coverage)
        out = [
            {
                "job_id": job.job.job_id,
                "device": row["device"],
                "release_id": self._predictor.release_id,
            }
            | {
                name: value
                for quantity, one in forecast.by_field().items()
                for name, value in _forecast_columns(quantity, one).items()
            }
            for job, row, forecast in zip(jobs, rows, forecasts, strict=True)
        ]
        self._add_slowdowns(out, rows, placements, coverage)
        return out

    def _add_slowdowns(
        self, out: list[Row], rows: Sequence[Row], placements: Sequence[Placement], coverage: float
    ) -> None:
        """Add slowdowns and memory fit to the rows of co-located jobs."""
        for name, positions in _group_by_colocation(rows).items():
            device = _common_device(name, [placements[i].device for i in positions])
            members = tuple(placements[i].job for i in positions)
            shares = (Share(mode=SHARING_MODE),) * len(members)
            forecast = self._predictor.predict_interference(
                [Colocation(device, members, shares)], coverage=coverage
            )[0]
            fit = {"fits": forecast.fits, "fit_probability": forecast.fit_probability}
            for position, slowdown in zip(positions, forecast.slowdowns, strict=True):
                out[position] |= _forecast_columns(INTERFERENCE.forecast_field, slowdown) | fit


def _load_pyfunc(path: str) -> ReleaseModel:
    """Load the release at ``path`` and check its files; MLflow calls this function."""
    return ReleaseModel(Predictor(load_release(Path(path))))


def _job(value: object, position: int) -> JobFeatures:
    text = value if isinstance(value, str) else json.dumps(value)
    return job_features.from_json(text, source=f"row {position}: job")


def _forecast_columns(name: str, forecast: Forecast) -> Row:
    return {
        f"{name}_median": forecast.median,
        f"{name}_low": forecast.low,
        f"{name}_high": forecast.high,
        f"{name}_in_domain": forecast.in_domain,
    }


def _group_by_colocation(rows: Iterable[Row]) -> dict[str, list[int]]:
    """Return the positions of the rows of each co-location."""
    found: dict[str, list[int]] = {}
    for position, row in enumerate(rows):
        name = row.get("colocation")
        if isinstance(name, str) and name:  # pandas uses None or NaN for a missing value
            found.setdefault(name, []).append(position)
    return found


def _common_device(name: str, devices: Sequence[Device]) -> Device:
    kinds = sorted({device.kind for device in devices})
    if len(kinds) > 1:
        raise InvalidJobError(
            f"co-location {name!r} is on {', '.join(kinds)}; its jobs must share one device"
        )
    return devices[0]
