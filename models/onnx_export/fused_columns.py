"""Columns that a fused predictor reads: clamped to bounds, and tested against them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from presage.models.training.device_effect import TOLERANCE
from presage.models.training.fit import log_offsets

_OFFSETS = log_offsets("full")
_MIN_POSITIVE = float(torch.finfo(torch.float32).tiny)


@dataclass(frozen=True, slots=True, order=True)
class ClampedColumn:
    """A raw column clamped to bounds; ``middle`` is subtracted from its logarithm."""

    position: int
    low: float
    high: float
    middle: float = 0.0

    @property
    def offset(self) -> float:
        """Addend before the logarithm; NaN if the column is used without a logarithm."""
        return float(_OFFSETS[self.position])


def clamp_column(position: int, middle: float, reach: float, *, raw: bool = True) -> ClampedColumn:
    """Return a column clamped to ``middle`` +- ``reach``, on the scale that networks see.

    ``raw`` columns are of the full feature set, whose logarithm is taken where the schema says so;
    other columns are already transformed.
    """
    low, high = middle - reach, middle + reach
    offset = float(_OFFSETS[position]) if raw else math.nan
    if math.isnan(offset):
        return ClampedColumn(position, low, high)
    return ClampedColumn(
        position, max(math.exp(low) - offset, 0.0), math.exp(high) - offset, middle
    )


class ColumnIndex:
    """Ordered set of columns; the position of a column is its place in the gathered input."""

    def __init__(self) -> None:
        self._places: dict[ClampedColumn, int] = {}

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[ClampedColumn]:
        return iter(self._places)

    def place(self, column: ClampedColumn) -> int:
        """Return the position of a column, which is added at the end if it is new."""
        return self._places.setdefault(column, len(self._places))


@dataclass(frozen=True, slots=True)
class Conjunction:
    """Condition that a row is within all of some bounds, and within none of others."""

    within: frozenset[ClampedColumn]
    without: frozenset[ClampedColumn] = frozenset()


def is_positive(position: int) -> ClampedColumn:
    """Return bounds that hold where a column is above 0."""
    return ClampedColumn(position, _MIN_POSITIVE, math.inf)


def is_on_device(device: Tensor, identity: Sequence[int], *, raw: bool = True) -> Conjunction:
    """Return the condition of :func:`presage.models.training.device_effect.is_same_device`."""
    return Conjunction(
        frozenset(
            clamp_column(position, value, TOLERANCE, raw=raw)
            for position, value in zip(identity, device.tolist(), strict=True)
        )
    )


def make_truth_layer(
    conditions: Sequence[Conjunction], boxes: ColumnIndex
) -> tuple[Tensor, Tensor]:
    """Return a layer that, with a ReLU, computes the truth values of conditions.

    The bounds of the conditions are added to ``boxes``. The input of the layer is 1 for every box
    that the row is within.

    Returns
    -------
    Tensor of shape (boxes, conditions)
        Weight.
    Tensor of shape (conditions,)
        Bias.
    """
    terms = [
        [(boxes.place(column), sign) for column in sorted(bounds)]
        for condition in conditions
        for bounds, sign in ((condition.within, 1.0), (condition.without, -1.0))
    ]
    weight = torch.zeros(len(boxes), len(conditions))
    for j, signed in enumerate(terms):
        for i, sign in signed:
            weight[i, j // 2] = sign
    return weight, torch.tensor([1.0 - len(condition.within) for condition in conditions])
