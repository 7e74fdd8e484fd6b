"""What a folded predictor reads of a row: columns held within bounds, and which are within them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from presage.models.training.device_effect import TOLERANCE
from presage.models.training.fit import log_offsets

_OFFSETS = log_offsets("full")
_LEAST_POSITIVE = float(torch.finfo(torch.float32).tiny)


@dataclass(frozen=True, slots=True, order=True)
class Held:
    """A raw column, held within bounds; its logarithm is taken less ``middle``."""

    position: int
    low: float
    high: float
    middle: float = 0.0

    @property
    def offset(self) -> float:
        """What is added before its logarithm is taken, NaN where the column is used as it is."""
        return float(_OFFSETS[self.position])


def held(position: int, middle: float, reach: float, *, raw: bool = True) -> Held:
    """A column of which the logarithm, or itself where used as it is, is held near ``middle``.

    ``raw`` columns are of the full feature set; others are as networks see them already.
    """
    low, high = middle - reach, middle + reach
    offset = float(_OFFSETS[position]) if raw else math.nan
    if math.isnan(offset):
        return Held(position, low, high)
    return Held(position, max(math.exp(low) - offset, 0.0), math.exp(high) - offset, middle)


class Columns:
    """Columns next to each other, each once, in the order in which they were first asked for."""

    def __init__(self) -> None:
        self._places: dict[Held, int] = {}

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[Held]:
        return iter(self._places)

    def place(self, column: Held) -> int:
        """Where it stands."""
        return self._places.setdefault(column, len(self._places))


@dataclass(frozen=True, slots=True)
class Conjunction:
    """Whether a row is within all of some bounds, and within none of others."""

    within: frozenset[Held]
    without: frozenset[Held] = frozenset()


def positive(position: int) -> Held:
    """Bounds of a column that is above 0."""
    return Held(position, _LEAST_POSITIVE, math.inf)


def alike(device: Tensor, identity: Sequence[int], *, raw: bool = True) -> Conjunction:
    """Return whether a row's device is the one of ``training.device_effect.same_device``."""
    return Conjunction(
        frozenset(
            held(position, value, TOLERANCE, raw=raw)
            for position, value in zip(identity, device.tolist(), strict=True)
        )
    )


def truth(wanted: Sequence[Conjunction], boxes: Columns) -> tuple[Tensor, Tensor]:
    """Weight (boxes, wanted) and bias (wanted,) that make, with relu, ones and zeros of them.

    Their bounds are placed in ``boxes``, of which the weight takes a 1 where a column is within.
    """
    terms = [
        [(boxes.place(one), sign) for one in sorted(some)]
        for each in wanted
        for some, sign in ((each.within, 1.0), (each.without, -1.0))
    ]
    weight = torch.zeros(len(boxes), len(wanted))
    for j, some in enumerate(terms):
        for i, sign in some:
            weight[i, j // 2] = sign
    return weight, torch.tensor([1.0 - len(each.within) for each in wanted])
