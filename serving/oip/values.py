"""Validation of input values; errors name the place of an invalid value, never the value."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from presage.errors import InvalidTensorError
from presage.features.colocation_member import MEMBER_COLUMNS
from presage.features.columns.schema import FEATURE_SETS
from presage.serving.predictor.feature_rows import MAX_FEATURE
from presage.system.arrays import Float32s, Mask

MAX_VALUE = np.float32(MAX_FEATURE)
_COLUMNS = FEATURE_SETS["full"]
# The models use the logarithms of most columns.
_LOWER_BOUNDS = np.array(
    [-MAX_VALUE if c.log_offset is None else 0 for c in _COLUMNS], dtype=np.float32
)


def check_values(inputs: Mapping[str, Float32s]) -> Mask | None:
    """Validate values; return the mask of members, or None for a model of rows.

    Returns
    -------
    ndarray of bool, shape (co-locations, members), or None

    Raises
    ------
    InvalidTensorError
        A value is not finite or out of range, including padding, or the mask is invalid.
    """
    if "features" in inputs:
        _check_features(inputs["features"])
        return None
    members, mask = inputs["members"], inputs["mask"]
    if mask.shape != members.shape[:2]:
        raise InvalidTensorError(
            f"mask: shape is {list(mask.shape)}, must be {list(members.shape[:2])}, "
            "the first two axes of members"
        )
    _check_members(members)
    return _read_mask(mask)


def _check_features(features: Float32s) -> None:
    good = (features >= _LOWER_BOUNDS) & (features <= MAX_VALUE)  # False for NaN
    if not good.all():
        row, column = np.argwhere(~good)[0].tolist()
        raise InvalidTensorError(
            f"features: {_COLUMNS[column].name!r} of row {row} is "
            f"{_describe_value(features[row, column])}, must be in "
            f"[{_LOWER_BOUNDS[column]:g}, {MAX_VALUE:g}]"
        )


def _check_members(members: Float32s) -> None:
    good = np.abs(members) <= MAX_VALUE
    if not good.all():
        place, member, column = np.argwhere(~good)[0].tolist()
        raise InvalidTensorError(
            f"members: {MEMBER_COLUMNS[column]!r} of member {member} of co-location {place} is "
            f"{_describe_value(members[place, member, column])}, must be in "
            f"[{-MAX_VALUE:g}, {MAX_VALUE:g}], in padding too"
        )


def _read_mask(mask: Float32s) -> Mask:
    present: Mask = mask == 1
    good = (present | (mask == 0)).all(axis=1)
    if not good.all():
        raise InvalidTensorError(
            f"mask: co-location {np.argmin(good)} has other values than 0 and 1; "
            "give 1 where there is a member, 0 where there is padding"
        )
    if not present[:, 0].all() or (present[:, 1:] > present[:, :-1]).any():
        in_order = present[:, 0] & (present[:, 1:] <= present[:, :-1]).all(axis=1)
        raise InvalidTensorError(
            f"mask: co-location {np.argmin(in_order)} does not begin with its members; "
            "give at least one, and padding after them"
        )
    return present


def _describe_value(value: np.float32) -> str:
    return "out of range" if np.isfinite(value) else "not finite"
