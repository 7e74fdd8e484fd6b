"""Feature rows and the validation of their values; ONNX Runtime is not imported here."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from presage.features.columns.placement_table import PlacementTable
from presage.features.columns.schema import FEATURE_SETS, columns, matrix
from presage.system.arrays import Array, FloatMatrix, Ints, Matrix

_MIN_FEATURE = np.array(
    [-np.inf if column.log_offset is None else 0.0 for column in FEATURE_SETS["full"]]
)
# Far above any job. Products with a model's factors stay within float32; larger features could give
# infinite outputs, which would look like an error of the release.
MAX_FEATURE = 1e30


@dataclass(frozen=True, slots=True, eq=False)
class FeatureRows:
    """Model inputs for placements, with the values of placements that are not features.

    Attributes
    ----------
    features : ndarray of shape (rows, columns of the full set)
        Valid features; float32 if they were received as float32.
    kinds : tuple of str
        Kinds of devices.
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
    """Return the features of placements and the error text of each invalid row."""
    features = matrix(table)
    return features, find_invalid_rows(features)


def find_invalid_rows(features: FloatMatrix) -> dict[int, str]:
    """Return the error texts of rows with values outside the models' range, by row."""
    # Minima and maxima need no arrays of their own. Comparisons are written so that NaN is invalid.
    least = features.min(axis=0, initial=np.inf)
    if (
        (least >= _MIN_FEATURE).all()
        and least.min() >= -MAX_FEATURE
        and features.max(initial=-np.inf) <= MAX_FEATURE
    ):
        return {}
    is_valid = (features >= _MIN_FEATURE) & (np.abs(features) <= MAX_FEATURE)
    rows = np.flatnonzero(~is_valid.all(axis=1)).tolist()
    return {row: _describe_error(features[row], int(np.argmin(is_valid[row]))) for row in rows}


def _describe_error(row: Array, column: int) -> str:
    return (
        f"feature {columns('full')[column]!r} is {row[column]:g}, must be in "
        f"[{_MIN_FEATURE[column]:g}, {MAX_FEATURE:g}]; check the job's sizes and the device's "
        "data sheet"
    )


def feature_rows(table: PlacementTable, features: Matrix) -> FeatureRows:
    """Return the model inputs for placements with these features."""
    return FeatureRows(
        features, table.devices.kinds, table.device, table.jobs.precisions[table.job],
        table.jobs.scalar("iterations")[table.job],
    )  # fmt: skip
