"""What a class of devices was learnt from, and why a job is a stranger to it.

A job is at home where its step is mixed like that of a job in training, its sizes lie within
training's, and its device, precision and operators were there. Mixtures are shares of a whole, so
their distance is Hellinger's: 0 for equal ones, 1 for those with nothing in common. A mixture is
strange when it is farther from all of training than most models there are from one another.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from presage.features.cells import CELLS
from presage.features.device_class import device_classes
from presage.features.schema import FEATURE_SETS, Matrix, columns

Array = np.ndarray[Any, np.dtype[np.float64]]

SIZES = ("batch_size", "op_count", "largest_input", "parameters", "roofline_s",
         "memory_prior_bytes", "share")  # fmt: skip
# Part of a size's trained range (in logarithms) by which it is widened at either end: the extremes
# of a sample lie inside those of what it was drawn from. Rounding is all that a constant one has.
MARGIN, ROUNDING = 0.05, 1e-3
# Models in training that are farther from any other than the radius: they would be strangers.
STRANGE = 0.05
PROTOTYPES, SAMPLE = 256, 512
# Of what a release vouches for, the mixtures are kept to this many digits.
DIGITS = 4

_SIZES = [columns("full").index(name) for name in SIZES]
_OFFSETS = np.array([FEATURE_SETS["full"][i].log_offset for i in _SIZES], dtype=np.float64)
_CELLS = [columns("full").index(f"time_share.{cell}") for cell in CELLS]
_UNKNOWN = columns("full").index("unknown_ops")


@dataclass(frozen=True, eq=False)
class Domain:
    """Where a release may vouch for its intervals, on one class of devices.

    Attributes
    ----------
    precisions : frozenset of str
    low, high : ndarray of shape (sizes,)
        Logarithms of ``SIZES`` in training.
    mixtures : ndarray of shape (prototypes, cells)
        Square roots of time shares of jobs in training, one near each of them.
    radius : float
        Distance from the nearest beyond which a mixture is strange.
    """

    precisions: frozenset[str]
    low: Array
    high: Array
    mixtures: Array
    radius: float

    def reasons(self, features: Matrix, precisions: Sequence[str]) -> list[str]:
        """Why each row (rows, columns of the full set) is a stranger, "" where it is none."""
        sizes, mixtures = _sizes(features), _mixtures(features)
        slack = MARGIN * (self.high - self.low) + ROUNDING
        outside = (sizes < self.low - slack) | (sizes > self.high + slack)
        nearest, distance = _nearest(mixtures, self.mixtures)

        def reason(row: int) -> str:
            if precisions[row] not in self.precisions:
                return f"no job was measured in {precisions[row]}"
            if features[row, _UNKNOWN] > 0:
                return f"{features[row, _UNKNOWN]:.0f} operators are of no known kind"
            if outside[row].any():
                return self._size(features[row], int(np.argmax(outside[row])))
            if distance[row] > self.radius:
                return self._mixture(mixtures[row], int(nearest[row]))
            return ""

        return [reason(row) for row in range(len(features))]

    def joined(self, other: Domain) -> Domain:
        """Where either vouches; strange by this one's measure."""
        return Domain(
            self.precisions | other.precisions,
            np.minimum(self.low, other.low),
            np.maximum(self.high, other.high),
            np.concatenate([self.mixtures, other.mixtures]),
            self.radius,
        )

    def as_json(self) -> dict[str, Any]:
        """For a manifest."""
        return {
            "precisions": sorted(self.precisions),
            "sizes": {
                name: [float(low), float(high)]
                for name, low, high in zip(SIZES, self.low, self.high, strict=True)
            },
            "cells": list(CELLS),
            "mixtures": [
                {str(cell): float(row[cell]) for cell in np.flatnonzero(row)}
                for row in self.mixtures
            ],
            "radius": self.radius,
        }

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Domain) and self.as_json() == other.as_json()

    __hash__ = None  # type: ignore[assignment]

    def _size(self, features: Array, position: int) -> str:
        low, high = (np.exp(b[position]) - _OFFSETS[position] for b in (self.low, self.high))
        found = features[_SIZES[position]]
        return f"{SIZES[position]} is {found:.3g}, was {low:.3g} to {high:.3g} in training"

    def _mixture(self, mixture: Array, nearest: int) -> str:
        cell = int(np.argmax(np.abs(mixture - self.mixtures[nearest])))
        own, other = (100 * root[cell] ** 2 for root in (mixture, self.mixtures[nearest]))
        return (
            f"{own:.0f} % of its step's time is in {CELLS[cell]}, {other:.0f} % in that of the "
            "most similar job measured"
        )


def reasons(
    domains: Mapping[str, Domain], features: Matrix, precisions: Sequence[str]
) -> list[str]:
    """Why each row is a stranger, "" where it is none.

    Parameters
    ----------
    domains : mapping of str to Domain
        By class of devices.
    features : ndarray of shape (rows, columns of the full set)
    """
    classes = device_classes(features)
    out = np.array([f"no job was measured on a {name}" for name in classes], dtype=object)
    for name, domain in domains.items():
        rows = np.flatnonzero(classes == name)
        out[rows] = domain.reasons(features[rows], list(np.asarray(precisions)[rows]))
    return list(out)


def learn_domain(features: Matrix, models: Sequence[str], precisions: Sequence[str]) -> Domain:
    """The domain of training rows (rows, columns of the full set)."""
    sizes, mixtures = _sizes(features), _mixtures(features)
    kept = _prototypes(mixtures)
    return Domain(
        frozenset(precisions),
        np.round(sizes.min(axis=0), DIGITS),
        np.round(sizes.max(axis=0), DIGITS),
        np.round(mixtures[kept], DIGITS),
        round(_radius(mixtures, kept, np.asarray(models)), DIGITS),
    )


def read_domain(content: Mapping[str, Any]) -> Domain:
    """The domain that a manifest holds.

    Raises
    ------
    KeyError, TypeError, ValueError
        It holds none.
    """
    if tuple(content["cells"]) != CELLS:
        raise ValueError("domain: other cells than this version's")
    mixtures = np.zeros((len(content["mixtures"]), len(CELLS)))
    for row, roots in enumerate(content["mixtures"]):
        for cell, root in roots.items():
            mixtures[row, int(cell)] = root
    low, high = np.array([content["sizes"][name] for name in SIZES], dtype=np.float64).T
    radius = float(content["radius"])
    return Domain(frozenset(content["precisions"]), low, high, mixtures, radius)


def _sizes(features: Matrix) -> Array:
    logs: Array = np.log(features[:, _SIZES] + _OFFSETS)
    return logs


def _mixtures(features: Matrix) -> Array:
    roots: Array = np.sqrt(features[:, _CELLS])
    return roots


def _nearest(mixtures: Array, known: Array) -> tuple[np.ndarray[Any, Any], Array]:
    """Position of, and Hellinger distance from, the nearest known mixture of each."""
    squares = _squares(mixtures, known)
    position = squares.argmin(axis=1)
    return position, np.sqrt(squares[np.arange(len(mixtures)), position] / 2)


def _squares(mixtures: Array, known: Array) -> Array:
    """Squared distances (mixtures, known)."""
    squares = (mixtures**2).sum(1)[:, None] + (known**2).sum(1) - 2 * mixtures @ known.T
    out: Array = np.maximum(squares, 0)
    return out


def _prototypes(mixtures: Array) -> list[int]:
    """Positions, farthest first (Gonzalez, 1985): every mixture is near one of them."""
    chosen = [0]
    distance = _nearest(mixtures, mixtures[:1])[1]
    while len(chosen) < min(PROTOTYPES, len(mixtures)) and distance.max() > 0:
        chosen.append(int(distance.argmax()))
        distance = np.minimum(distance, _nearest(mixtures, mixtures[chosen[-1:]])[1])
    return chosen


def _radius(mixtures: Array, kept: list[int], models: np.ndarray[Any, Any]) -> float:
    """Distance from the nearest mixture kept, of another model, that few of training's exceed."""
    sample = np.arange(0, len(mixtures), math.ceil(len(mixtures) / SAMPLE))
    squares = _squares(mixtures[sample], mixtures[kept])
    squares[models[sample][:, None] == models[kept]] = np.inf
    least = squares.min(axis=1)
    least = least[np.isfinite(least)]  # infinite where there is one model alone
    return float(np.sqrt(np.quantile(least, 1 - STRANGE) / 2)) if len(least) else 0.0
