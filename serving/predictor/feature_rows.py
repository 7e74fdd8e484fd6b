"""Rows of features, and whether the models take their numbers; ONNX Runtime is not needed here."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from presage.features.arrays import Array, FloatMatrix, Ints, Matrix
from presage.features.columns.placement_table import PlacementTable
from presage.features.columns.schema import FEATURE_SETS, columns, matrix

_LEAST_FEATURE = np.array(
    [-np.inf if column.log_offset is None else 0.0 for column in FEATURE_SETS["full"]]
)
# No job comes near, and a model's factors over it stay in float32: nearer to that type's end an
# answer may be infinite, which would look like the release's fault.
MOST_FEATURE = 1e30


@dataclass(frozen=True, slots=True, eq=False)
class FeatureRows:
    """What the models are asked of placements, and what of these is not among the features.

    Attributes
    ----------
    features : ndarray of shape (rows, columns of the full set)
        Each a number that the models take; in float32 where they came so.
    kinds : tuple of str
        Of devices.
    device : ndarray of int, shape (rows,)
        Positions in ``kinds``.
    precision : ndarray of int, shape (rows,)
        Positions in ``PRECISIONS``.
    iterations : ndarray of shape (rows,)
    """

    features: FloatMatrix
    kinds: tuple[str, ...]
    device: Ints
    precision: Ints
    iterations: Array

    def __len__(self) -> int:
        return len(self.features)


def compute_features(table: PlacementTable) -> tuple[Matrix, dict[int, str]]:
    """Features of placements, and what is wrong with each row that the models do not take."""
    features = matrix(table)
    return features, find_invalid_rows(features)


def find_invalid_rows(features: FloatMatrix) -> dict[int, str]:
    """What is wrong with rows whose numbers the models do not take, by row."""
    # Written so that NaN is not taken.
    taken = (features >= _LEAST_FEATURE) & (np.abs(features) <= MOST_FEATURE)
    if taken.all():
        return {}
    rows = np.flatnonzero(~taken.all(axis=1)).tolist()
    return {row: _wrong(features[row], int(np.argmin(taken[row]))) for row in rows}


def _wrong(row: Array, column: int) -> str:
    return (
        f"feature {columns('full')[column]!r} is {row[column]:g}, must be in "
        f"[{_LEAST_FEATURE[column]:g}, {MOST_FEATURE:g}]; check the job's sizes and the device's "
        "data sheet"
    )


def feature_rows(table: PlacementTable, features: Matrix) -> FeatureRows:
    """What the models are asked of placements with these features."""
    return FeatureRows(
        features, table.devices.kinds, table.device, table.jobs.precisions[table.job],
        table.jobs.scalar("iterations")[table.job],
    )  # fmt: skip
