"""What the numbers of input tensors may be; an error says where a bad one is, never what it is."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from presage.errors import InvalidTensorError
from presage.features.colocation_member import MEMBER_COLUMNS
from presage.features.columns.schema import FEATURE_SETS
from presage.serving.predictor.feature_rows import MOST_FEATURE
from presage.system.arrays import Float32s, Mask

MOST = np.float32(MOST_FEATURE)
_COLUMNS = FEATURE_SETS["full"]
# The models take the logarithms of most columns.
_LEAST = np.array([-MOST if c.log_offset is None else 0 for c in _COLUMNS], dtype=np.float32)


def check_values(inputs: Mapping[str, Float32s]) -> Mask | None:
    """Where there are members, of shape (co-locations, members); None for a model of rows.

    Raises
    ------
    InvalidTensorError
        A value is not finite or out of its range, padding included, or the mask is not one.
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
    return _present(mask)


def _check_features(features: Float32s) -> None:
    good = (features >= _LEAST) & (features <= MOST)  # NaN is neither
    if not good.all():
        row, column = np.argwhere(~good)[0].tolist()
        raise InvalidTensorError(
            f"features: {_COLUMNS[column].name!r} of row {row} is {_wrong(features[row, column])}, "
            f"must be in [{_LEAST[column]:g}, {MOST:g}]"
        )


def _check_members(members: Float32s) -> None:
    good = np.abs(members) <= MOST
    if not good.all():
        place, member, column = np.argwhere(~good)[0].tolist()
        raise InvalidTensorError(
            f"members: {MEMBER_COLUMNS[column]!r} of member {member} of co-location {place} is "
            f"{_wrong(members[place, member, column])}, must be in [{-MOST:g}, {MOST:g}], "
            "in padding too"
        )


def _present(mask: Float32s) -> Mask:
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


def _wrong(value: np.float32) -> str:
    return "out of range" if np.isfinite(value) else "not finite"
