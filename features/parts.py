"""What a forecast is a sum of: a step's operators for its time, what holds bytes for its memory.

Each part has a base that first principles give, seconds by the roofline or bytes by the trace, and
features that say how good that is. The predictors learn a factor for every part and add up: the
operators of a model that nobody measured are those of models that somebody did.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[np.float64]]
Integers = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of some placements' forecasts, padded to as many as the longest has.

    Attributes
    ----------
    units : ndarray of int, shape (rows, parts)
        What each part is, as a position in the units' names.
    base : ndarray of shape (rows, parts)
        Seconds or GiB; 0 where there is no part.
    features : ndarray of shape (rows, parts, features)
    context : ndarray of shape (rows, columns)
        What all parts of a row have in common.
    """

    units: Integers
    base: Array
    features: Array
    context: Array

    def __len__(self) -> int:
        return len(self.base)

    def take(self, keep: np.ndarray) -> Parts:
        """The rows that a mask or positions choose."""
        return Parts(self.units[keep], self.base[keep], self.features[keep], self.context[keep])


def padded(rows: Sequence[tuple[Integers, Array, Array]], context: Sequence[Array]) -> Parts:
    """Rows of (units, base, features) of different lengths as one :class:`Parts`."""
    longest = max((len(units) for units, _, _ in rows), default=0)
    n_features = rows[0][2].shape[1] if rows else 0
    units = np.zeros((len(rows), longest), dtype=np.int64)
    base = np.zeros((len(rows), longest))
    features = np.zeros((len(rows), longest, n_features))
    for row, (of_row, bases, numbers) in enumerate(rows):
        units[row, : len(of_row)] = of_row
        base[row, : len(of_row)] = bases
        features[row, : len(of_row)] = numbers
    return Parts(units, base, features, np.array(context))


def joined(first: Parts, second: Parts) -> Parts:
    """Rows of both, padded alike."""
    longest = max(first.base.shape[1], second.base.shape[1])

    def both(name: str) -> Any:
        values = [getattr(parts, name) for parts in (first, second)]
        if name == "context":
            return np.concatenate(values)
        widths = [[(0, 0), (0, longest - v.shape[1]), *[(0, 0)] * (v.ndim - 2)] for v in values]
        return np.concatenate([np.pad(v, w) for v, w in zip(values, widths, strict=True)])

    return Parts(both("units"), both("base"), both("features"), both("context"))
