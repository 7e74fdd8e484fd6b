"""What a class of devices was learnt from, and why a job is a stranger to it.

A job is at home where its step is mixed like that of a job in training, its sizes lie within
training's, and its device, precision and operators were there. Mixtures are shares of a whole, so
their distance is Hellinger's: 0 for equal ones, 1 for those with nothing in common. A mixture is
strange when it is farther from all of training than most models there are from one another.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from presage.features.columns.schema import FEATURE_SETS, columns
from presage.features.device.device_class import COMPUTE_CAPABILITY, GPU, device_classes
from presage.features.graph.operator_buckets import OPERATOR_BUCKETS
from presage.features.job.job import PRECISIONS
from presage.models.release.manifest import parse_list, parse_number, parse_numbers, parse_texts
from presage.system.arrays import Array, FloatMatrix, Ints, Mask, Matrix

SIZES = ("batch_size", "op_count", "largest_input", "parameters", "roofline_s",
         "memory_prior_bytes", "share")  # fmt: skip
# Part of a size's trained range (in logarithms) by which it is widened at either end: the extremes
# of a sample lie inside those of what it was drawn from. Rounding is all that a constant one has.
MARGIN, ROUNDING = 0.05, 1e-3
# Models in training that are farther from any other than the radius: they would be strangers.
OUTLIER_FRACTION = 0.05
PROTOTYPES, SAMPLE = 256, 512
# Of what a release vouches for, the mixtures are kept to this many digits.
DIGITS = 4
# Rows whose distances are computed together. Of many more, BLAS would give parts of the product to
# other threads, which takes ten times as long as the product itself where these are busy.
ROWS_AT_ONCE = 16

_SIZES = np.array([columns("full").index(name) for name in SIZES])
_OFFSETS = np.array([FEATURE_SETS["full"][i].log_offset for i in _SIZES], dtype=np.float64)
_FIRST_BUCKET = columns("full").index(f"time_share.{OPERATOR_BUCKETS[0]}")
_BUCKETS = slice(_FIRST_BUCKET, _FIRST_BUCKET + len(OPERATOR_BUCKETS))
_UNKNOWN_OPS = columns("full").index("unknown_ops")
# Tests, in the order in which their reasons come; one for each size.
_PRECISION, _UNKNOWN, _SIZE = range(3)
_MIXTURE = _SIZE + len(SIZES)


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

    def contains(self, features: FloatMatrix, precisions: Ints) -> Mask:
        """Which rows (rows, columns of the full set) are at home, shape (rows,).

        ``precisions`` are positions in ``PRECISIONS``.
        """
        at_home: Mask = ~np.logical_or.reduce(self._simply_strange(features, precisions), axis=1)
        # The nearest mixture takes longest to find, and most strangers are found before it is.
        rows = slice(None) if at_home.all() else at_home.nonzero()[0]
        at_home[rows] = ~self._is_far(_mixtures(features[rows]))
        return at_home

    def reasons(self, features: FloatMatrix, precisions: Ints) -> list[str]:
        """Why each row is a stranger, "" where it is none."""
        strange = self._strange(features, precisions)
        out = [""] * len(features)
        for row in np.flatnonzero(strange.any(axis=1)).tolist():
            precision, test = PRECISIONS[precisions[row]], int(strange[row].argmax())
            out[row] = self._reason(features[row], precision, test)
        return out

    def _strange(self, features: FloatMatrix, precisions: Ints) -> Mask:
        """Which tests each row fails, shape (rows, tests); reasons come in this order."""
        far = self._is_far(_mixtures(features))
        return np.column_stack((self._simply_strange(features, precisions), far))

    def _simply_strange(self, features: FloatMatrix, precisions: Ints) -> Mask:
        """The same, of all tests but the mixture's."""
        out = np.empty((len(features), _MIXTURE), dtype=np.bool_)
        sizes, (low, high) = _sizes(features), self._bounds
        out[:, _PRECISION] = self._unmeasured.take(precisions)
        out[:, _UNKNOWN] = features[:, _UNKNOWN_OPS] > 0
        out[:, _SIZE:] = (sizes < low) | (sizes > high)
        return out

    @cached_property
    def _bounds(self) -> tuple[Array, Array]:
        slack = MARGIN * (self.high - self.low) + ROUNDING
        return self.low - slack, self.high + slack

    @cached_property
    def _unmeasured(self) -> Mask:
        """By position in ``PRECISIONS``."""
        return np.array([name not in self.precisions for name in PRECISIONS])

    @cached_property
    def _known(self) -> tuple[Array, Array]:
        """Mixtures (cells, prototypes), and half of each one's square."""
        return np.ascontiguousarray(self.mixtures.T), (self.mixtures**2).sum(axis=1) / 2

    def _is_far(self, mixtures: Array) -> Mask:
        """Which mixtures (rows, cells) are farther than the radius from every prototype."""
        likeness = np.empty(len(mixtures))
        for start in range(0, len(mixtures), ROWS_AT_ONCE):
            part = slice(start, start + ROWS_AT_ONCE)
            self._likeness(mixtures[part]).max(axis=1, out=likeness[part])
        # A Hellinger distance's square is half of that between the roots.
        distance_squared = np.add.reduce(mixtures * mixtures, axis=1) / 2 - likeness
        far: Mask = distance_squared > self.radius**2
        return far

    def _likeness(self, mixtures: Array) -> Array:
        """Half of each mixture's square less half of the squared distance (rows, prototypes)."""
        known, half_squares = self._known
        # Of all cells, few are in any job's step.
        cells = np.logical_or.reduce(mixtures, axis=0).nonzero()[0]
        likeness: Array = mixtures.take(cells, axis=1) @ known.take(cells, axis=0)
        likeness -= half_squares
        return likeness

    def _reason(self, features: Array, precision: str, test: int) -> str:
        """What the first test that a row fails found."""
        if test == _PRECISION:
            return f"no job was measured in {precision}"
        if test == _UNKNOWN:
            return f"{features[_UNKNOWN_OPS]:.0f} operators are of no known kind"
        if test < _MIXTURE:
            return self._size(features, test - _SIZE)
        mixture = _mixtures(features[None])
        return self._mixture(mixture[0], int(self._likeness(mixture).argmax()))

    def union(self, other: Domain) -> Domain:
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
            "cells": list(OPERATOR_BUCKETS),
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
            f"{own:.0f} % of its step's time is in {OPERATOR_BUCKETS[cell]}, {other:.0f} % in that "
            "of the most similar job measured"
        )


def contains(domains: Mapping[str, Domain], features: FloatMatrix, precisions: Ints) -> Mask:
    """Which rows (rows, columns of the full set) are at home, shape (rows,).

    ``domains`` are by class of devices, ``precisions`` positions in ``PRECISIONS``.
    """
    out = np.zeros(len(features), dtype=np.bool_)
    for domain, rows in _by_class(domains, features):
        out[rows] = domain.contains(features[rows], precisions[rows])
    return out


def explain_out_of_domain(
    domains: Mapping[str, Domain], features: FloatMatrix, precisions: Ints
) -> list[str]:
    """Why each row is a stranger, "" where it is none; parameters are those of :func:`contains`."""
    classes = device_classes(features)
    out = np.array([f"no job was measured on a {name}" for name in classes], dtype=object)
    for domain, rows in _by_class(domains, features):
        out[rows] = domain.reasons(features[rows], precisions[rows])
    return list(out)


def _by_class(
    domains: Mapping[str, Domain], features: FloatMatrix
) -> Iterator[tuple[Domain, Ints | slice]]:
    """Each domain that rows are to be judged by, and which."""
    on_gpu = features[:, COMPUTE_CAPABILITY] > 0
    gpus = np.count_nonzero(on_gpu)
    for name, domain in domains.items():
        count = gpus if name == GPU else len(features) - gpus
        if count == len(features):  # as most often: nothing needs to be copied
            yield domain, slice(None)
        elif count:
            yield domain, np.flatnonzero(on_gpu == (name == GPU))


def fit_domain(features: Matrix, models: Sequence[str], precisions: Sequence[str]) -> Domain:
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


def parse_domain(content: Mapping[str, Any]) -> Domain:
    """The domain that a manifest holds.

    Raises
    ------
    KeyError, TypeError, ValueError
        It holds none.
    """
    if tuple(content["cells"]) != OPERATOR_BUCKETS:
        raise ValueError("domain: other cells than this version's")
    rows = parse_list(content["mixtures"], "mixtures")
    radius = parse_number(content["radius"], "radius")
    if not rows or not 0 <= radius <= 1:
        raise ValueError("domain: no mixtures, or a radius that is no distance of mixtures")
    mixtures = np.zeros((len(rows), len(OPERATOR_BUCKETS)))
    for row, roots in enumerate(rows):
        for cell, root in roots.items():
            if not 0 <= int(cell) < len(OPERATOR_BUCKETS):
                raise ValueError(f"domain: no cell {int(cell)}")
            mixtures[row, int(cell)] = parse_number(root, "a mixture")
    if mixtures.min() < 0 or mixtures.max() > 1:
        raise ValueError("domain: a mixture's part is not between 0 and 1")
    bounds = [parse_numbers(content["sizes"][name], f"sizes.{name}") for name in SIZES]
    low, high = np.array(bounds, dtype=np.float64).T
    precisions = parse_texts(content["precisions"], "precisions")
    return Domain(frozenset(precisions), low, high, mixtures, radius)


def _sizes(features: FloatMatrix) -> Array:
    logs: Array = np.log(features.take(_SIZES, axis=1) + _OFFSETS)
    return logs


def _mixtures(features: FloatMatrix) -> Array:
    roots: Array = np.sqrt(features[:, _BUCKETS], dtype=np.float64)
    return roots


def _squares(mixtures: Array, known: Array) -> Array:
    """Squared distances (mixtures, known)."""
    squares = (mixtures**2).sum(1)[:, None] + (known**2).sum(1) - 2 * mixtures @ known.T
    out: Array = np.maximum(squares, 0)
    return out


def _distances_to(mixtures: Array, one: Array) -> Array:
    """Hellinger distance of each mixture from one, of shape (1, cells)."""
    return np.sqrt(_squares(mixtures, one)[:, 0] / 2)


def _prototypes(mixtures: Array) -> list[int]:
    """Positions, farthest first (Gonzalez, 1985): every mixture is near one of them."""
    chosen = [0]
    distance = _distances_to(mixtures, mixtures[:1])
    while len(chosen) < min(PROTOTYPES, len(mixtures)) and distance.max() > 0:
        chosen.append(int(distance.argmax()))
        distance = np.minimum(distance, _distances_to(mixtures, mixtures[chosen[-1:]]))
    return chosen


def _radius(mixtures: Array, kept: list[int], models: np.ndarray[Any, Any]) -> float:
    """Distance from the nearest mixture kept, of another model, that few of training's exceed."""
    sample = np.arange(0, len(mixtures), math.ceil(len(mixtures) / SAMPLE))
    squares = _squares(mixtures[sample], mixtures[kept])
    squares[models[sample][:, None] == models[kept]] = np.inf
    least = squares.min(axis=1)
    least = least[np.isfinite(least)]  # infinite where there is one model alone
    return float(np.sqrt(np.quantile(least, 1 - OUTLIER_FRACTION) / 2)) if len(least) else 0.0
