"""Packed feature rows: one block of bytes, for clients that compute features themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from presage.errors import InvalidJobError, StaleSchemaError
from presage.features.columns.placement_table import placement_table
from presage.features.columns.schema import columns
from presage.features.forecast import Forecast
from presage.features.job.job_description import PRECISIONS
from presage.features.placement import Placement
from presage.features.quantities.quantity_registry import job_quantities
from presage.serving.codec.request_limits import MAX_ROWS
from presage.serving.codec.wire_values import KnownDevice, check_text
from presage.serving.predictor.feature_rows import (
    FeatureRows,
    compute_features,
    feature_rows,
    find_invalid_rows,
)
from presage.serving.predictor.prediction_backend import JobForecast, job_forecasts
from presage.serving.v1 import prediction_pb2 as pb
from presage.system.arrays import Array, Ints

_FLOAT_BYTES = 4
# Precision number of the protocol -> position in PRECISIONS.
_PRECISIONS = np.array(
    [
        PRECISIONS.index(value.name.lower())
        for value in pb.PredictMatrixRequest.Precision.DESCRIPTOR.values
    ]
)


def count_rows(request: pb.PredictMatrixRequest, schema_hash: str) -> int:
    """Return the number of rows in a request.

    Raises
    ------
    StaleSchemaError
        The rows have another version of the feature schema; names the served one.
    InvalidJobError
        The bytes are not a whole number of rows, or there are too many rows.
    """
    if request.schema_hash != schema_hash:
        raise StaleSchemaError(
            f"schema_hash is not that of the served release, {schema_hash}; compute the rows "
            "again with the columns from GetRelease, or send jobs to Predict"
        )
    width = _FLOAT_BYTES * len(columns("full"))
    rows, rest = divmod(len(request.features), width)
    if rest or not 1 <= rows <= MAX_ROWS:
        raise InvalidJobError(
            f"features has {len(request.features)} bytes, must be 1 to {MAX_ROWS} rows of {width} "
            f"({len(columns('full'))} columns of float32)"
        )
    return rows


def read_matrix(
    request: pb.PredictMatrixRequest, schema_hash: str, known: KnownDevice
) -> FeatureRows:
    """Return the feature rows of a request.

    Raises as :func:`count_rows` does, and InvalidJobError for invalid rows. A device kind that is
    not ``known`` is out of domain; the rows contain its data sheet.
    """
    rows = count_rows(request, schema_hash)
    features = np.frombuffer(request.features, dtype="<f4").reshape(rows, -1)
    if wrong := find_invalid_rows(features):
        raise InvalidJobError(f"features: row {min(wrong)}: {wrong[min(wrong)]}")
    if not 1 <= len(request.device_kinds) <= MAX_ROWS:
        raise InvalidJobError(
            f"device_kinds has {len(request.device_kinds)} entries, must have 1 to {MAX_ROWS}"
        )
    for i, kind in enumerate(request.device_kinds):
        check_text(kind, f"device_kinds[{i}]")
    precision = _values_per_row(request.precisions, rows, 0, "precisions", len(_PRECISIONS))
    devices = map(known, request.device_kinds)
    kinds = tuple(
        kind if device is None else device.kind
        for kind, device in zip(request.device_kinds, devices, strict=True)
    )
    iterations = _values_per_row(request.iterations, rows, 1, "iterations", None)
    if iterations.min() < 1:
        raise InvalidJobError(
            f"iterations[{int(iterations.argmin())}]={iterations.min()}, must be >= 1"
        )
    return FeatureRows(
        features,
        kinds,
        _values_per_row(request.device_index, rows, 0, "device_index", len(kinds)),
        _PRECISIONS[precision],
        iterations.astype(np.float64),
    )


def write_matrix(placements: Sequence[Placement], schema_hash: str) -> pb.PredictMatrixRequest:
    """Compute the features of placements and return the request.

    Raises
    ------
    InvalidJobError
        A value of a placement is outside the models' range.
    """
    table = placement_table(placements)
    features, wrong = compute_features(table)
    if wrong:
        row = min(wrong)
        raise InvalidJobError(f"job {placements[row].job.job.job_id!r}: {wrong[row]}")
    rows = feature_rows(table, features)
    codes = np.argsort(_PRECISIONS)
    return pb.PredictMatrixRequest(
        schema_hash=schema_hash,
        features=rows.features.astype("<f4").tobytes(),
        device_kinds=rows.kinds,
        device_index=rows.device.tolist(),
        precisions=codes[rows.precision].tolist(),
        iterations=rows.iterations.astype(np.int64).tolist(),
    )


def read_matrix_forecasts(response: pb.PredictMatrixResponse, coverage: float) -> list[JobForecast]:
    """Return the forecasts of a response in the order of the rows."""
    levels = np.array(response.levels)
    positions = [_nearest(levels, level) for level in (0.5, (1 - coverage) / 2, (1 + coverage) / 2)]
    flags = np.frombuffer(response.in_domain, dtype=np.uint8)
    found: dict[str, list[Forecast]] = {}
    for bit, (name, quantity) in enumerate(job_quantities().items()):
        octets, inside = b"", flags >> bit & 1
        if quantity.in_proto:
            octets = getattr(response, name)
        elif name in response.additional:
            octets = response.additional[name].values
            inside = np.frombuffer(response.additional[name].in_domain, dtype=np.uint8)
        else:
            continue  # the release does not predict it
        values = np.frombuffer(octets, dtype="<f8").reshape(-1, len(levels))
        found[name] = [
            Forecast(median, low, high, quantity.unit, is_inside, response.release_id, coverage)
            for (median, low, high), is_inside in zip(
                values[:, positions].tolist(), (inside > 0).tolist(), strict=True
            )
        ]
    return job_forecasts(found)


def _nearest(levels: Array, level: float) -> int:
    found = int(np.abs(levels - level).argmin())
    if abs(levels[found] - level) > 1e-6:
        raise InvalidJobError(
            f"the release has no quantile {level:g}; it has {', '.join(f'{x:g}' for x in levels)}"
        )
    return found


def _values_per_row(values: Any, rows: int, default: int, name: str, bound: int | None) -> Ints:
    """Return one value per row: the sent values, or the default for all rows."""
    if len(values) not in {0, rows}:
        raise InvalidJobError(
            f"{name} has {len(values)} entries, must have one for each of {rows} rows, or none"
        )
    if not values:
        return np.full(rows, default)
    out = np.fromiter(values, np.int64, rows)
    if bound is not None and not (out.min() >= 0 and out.max() < bound):
        row = int(np.argmax((out < 0) | (out >= bound)))
        raise InvalidJobError(f"{name}[{row}]={out[row]}, must be 0 to {bound - 1}")
    return out
