"""Training domain of a device class, and the reasons why a job is out of domain.

A job is in domain if its operator time shares are similar to those of a training job, its sizes are
within the training ranges, and its device, precision and operators occurred in training. The
distance of time shares is Hellinger's: 0 for equal shares, 1 for disjoint ones. Time shares are out
of domain if they are farther from all of training than most training models are from one another.

A job is near training if it is in domain and within a second, smaller radius. The first radius
determines the flag ``in_domain``, the second which intervals are widened: most jobs of a kind that
was not measured are beyond it (decision 60). In ``release.json``, ``cells`` are the operator
buckets and ``mixtures`` the time shares.
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
from presage.features.job.job_description import PRECISIONS
from presage.models.release.manifest import (
    parse_list,
    parse_number,
    parse_numbers,
    parse_texts,
)
from presage.system.arrays import Array, FloatMatrix, Ints, Mask, Matrix

SIZES = ("batch_size", "op_count", "largest_input", "parameters", "roofline_s",
         "memory_prior_bytes", "share")  # fmt: skip
# A size's training range (in logarithms) is widened at either end by this fraction, because the
# extremes of a sample lie within those of its population; a constant size only by rounding.
MARGIN, ROUNDING = 0.05, 1e-3
# Fractions of the training models that are farther than the radius, and than the near radius, from
# any other model.
OUTLIER_FRACTION, WIDENED_FRACTION = 0.05, 0.30
PROTOTYPES, SAMPLE = 256, 512
TRAVERSED = 20_000  # rows among which prototypes are chosen; evenly spaced if there are more
# Decimal digits of a domain in the manifest.
DIGITS = 4
# Rows whose distances are computed together. With many more rows, BLAS would use other threads,
# which takes ten times as long as the product itself when the cores are busy.
ROWS_AT_ONCE = 16

_SIZES = np.array([columns("full").index(name) for name in SIZES])
_OFFSETS = np.array([FEATURE_SETS["full"][i].log_offset for i in _SIZES], dtype=np.float64)
_FIRST_BUCKET = columns("full").index(f"time_share.{OPERATOR_BUCKETS[0]}")
_BUCKETS = slice(_FIRST_BUCKET, _FIRST_BUCKET + len(OPERATOR_BUCKETS))
_UNKNOWN_OPS = columns("full").index("unknown_ops")
# Tests, in order of precedence of their reasons; one test for each size.
_PRECISION, _UNKNOWN, _SIZE = range(3)
_MIXTURE = _SIZE + len(SIZES)


@dataclass(frozen=True, eq=False)
class Domain:
    """Jobs on one class of devices for which the calibration of a release holds.

    Attributes
    ----------
    precisions : frozenset of str
        Precisions in training.
    low, high : ndarray of shape (sizes,)
        Ranges of the logarithms of ``SIZES`` in training.
    mixtures : ndarray of shape (prototypes, buckets)
        Square roots of the time shares of prototypes, one near each training job.
    radius : float
        Largest distance from the nearest prototype that is in domain.
    near_radius : float
        Largest distance from the nearest prototype at which intervals are not widened; at most
        ``radius``.
    """

    precisions: frozenset[str]
    low: Array
    high: Array
    mixtures: Array
    radius: float
    near_radius: float

    def contains(self, features: FloatMatrix, precisions: Ints) -> Mask:
        """Return whether rows (rows, columns of the full set) are in domain, shape (rows,).

        ``precisions`` are positions in ``PRECISIONS``.
        """
        in_domain, _ = self.classify(features, precisions)
        return in_domain

    def classify(self, features: FloatMatrix, precisions: Ints) -> tuple[Mask, Mask]:
        """Return which rows are in domain, and which of them are near training, both (rows,)."""
        in_domain: Mask = ~np.logical_or.reduce(self._failed_range_tests(features, precisions), 1)
        near = in_domain.copy()
        # The distance test is the slowest, and the other tests reject most out-of-domain rows.
        rows = slice(None) if in_domain.all() else in_domain.nonzero()[0]
        distance_squared = self._distance_squared(_mixtures(features[rows]))
        in_domain[rows] = distance_squared <= self.radius**2
        near[rows] = distance_squared <= self.near_radius**2
        return in_domain, near

    def reasons(self, features: FloatMatrix, precisions: Ints) -> list[str]:
        """Return why each row is out of domain, "" for rows in domain."""
        failed = self._failed_tests(features, precisions)
        out = [""] * len(features)
        for row in np.flatnonzero(failed.any(axis=1)).tolist():
            precision, test = PRECISIONS[precisions[row]], int(failed[row].argmax())
            out[row] = self._reason(features[row], precision, test)
        return out

    def _failed_tests(self, features: FloatMatrix, precisions: Ints) -> Mask:
        """Return which tests each row fails, shape (rows, tests)."""
        is_far = self._distance_squared(_mixtures(features)) > self.radius**2
        return np.column_stack((self._failed_range_tests(features, precisions), is_far))

    def _failed_range_tests(self, features: FloatMatrix, precisions: Ints) -> Mask:
        """Return which tests each row fails, without the distance test."""
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
        """Whether a precision is missing in training, by position in ``PRECISIONS``."""
        return np.array([name not in self.precisions for name in PRECISIONS])

    @cached_property
    def _known(self) -> tuple[Array, Array]:
        """Prototypes (buckets, prototypes), and half of the square of each."""
        return np.ascontiguousarray(self.mixtures.T), (self.mixtures**2).sum(axis=1) / 2

    def _distance_squared(self, mixtures: Array) -> Array:
        """Return squared distances of time shares (rows, buckets) from the nearest prototype."""
        similarity = np.empty(len(mixtures))
        for start in range(0, len(mixtures), ROWS_AT_ONCE):
            part = slice(start, start + ROWS_AT_ONCE)
            self._similarity(mixtures[part]).max(axis=1, out=similarity[part])
        # The squared Hellinger distance is half of the squared distance of the square roots.
        distance_squared: Array = np.add.reduce(mixtures * mixtures, axis=1) / 2 - similarity
        return distance_squared

    def _similarity(self, mixtures: Array) -> Array:
        """Return (|row|^2 - squared distance) / 2 of rows and prototypes."""
        known, half_squares = self._known
        # Few of all buckets occur in a job's step.
        buckets = np.logical_or.reduce(mixtures, axis=0).nonzero()[0]
        similarity: Array = mixtures.take(buckets, axis=1) @ known.take(buckets, axis=0)
        similarity -= half_squares
        return similarity

    def _reason(self, features: Array, precision: str, test: int) -> str:
        """Return the reason of the first test that a row fails."""
        if test == _PRECISION:
            return f"no job was measured in {precision}"
        if test == _UNKNOWN:
            return f"{features[_UNKNOWN_OPS]:.0f} operators are of no known kind"
        if test < _MIXTURE:
            return self._size_reason(features, test - _SIZE)
        mixture = _mixtures(features[None])
        return self._mixture_reason(mixture[0], int(self._similarity(mixture).argmax()))

    def union(self, other: Domain) -> Domain:
        """Return the domain of both together, with the radii of this one."""
        return Domain(
            self.precisions | other.precisions,
            np.minimum(self.low, other.low),
            np.maximum(self.high, other.high),
            np.concatenate([self.mixtures, other.mixtures]),
            self.radius,
            self.near_radius,
        )

    def as_json(self) -> dict[str, Any]:
        """Return the domain as the manifest stores it."""
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
            "near_radius": self.near_radius,
        }

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Domain) and self.as_json() == other.as_json()

    __hash__ = None  # type: ignore[assignment]

    def _size_reason(self, features: Array, position: int) -> str:
        low, high = (np.exp(b[position]) - _OFFSETS[position] for b in (self.low, self.high))
        found = features[_SIZES[position]]
        return f"{SIZES[position]} is {found:.3g}, was {low:.3g} to {high:.3g} in training"

    def _mixture_reason(self, mixture: Array, nearest: int) -> str:
        bucket = int(np.argmax(np.abs(mixture - self.mixtures[nearest])))
        own, other = (100 * root[bucket] ** 2 for root in (mixture, self.mixtures[nearest]))
        return (
            f"{own:.0f} % of its step's time is in {OPERATOR_BUCKETS[bucket]}, "
            f"{other:.0f} % in that of the most similar job measured"
        )


def contains(domains: Mapping[str, Domain], features: FloatMatrix, precisions: Ints) -> Mask:
    """Return whether rows (rows, columns of the full set) are in domain, shape (rows,).

    ``domains`` are by device class, ``precisions`` positions in ``PRECISIONS``.
    """
    in_domain, _ = classify(domains, features, precisions)
    return in_domain


def classify(
    domains: Mapping[str, Domain], features: FloatMatrix, precisions: Ints
) -> tuple[Mask, Mask]:
    """Return which rows are in domain, and which of them are near training, both (rows,).

    The parameters are those of :func:`contains`.
    """
    in_domain, near = np.zeros((2, len(features)), dtype=np.bool_)
    for domain, rows in _by_class(domains, features):
        in_domain[rows], near[rows] = domain.classify(features[rows], precisions[rows])
    return in_domain, near


def explain_out_of_domain(
    domains: Mapping[str, Domain], features: FloatMatrix, precisions: Ints
) -> list[str]:
    """Return why each row is out of domain, "" for rows in domain.

    The parameters are those of :func:`contains`.
    """
    classes = device_classes(features)
    out = np.array([f"no job was measured on a {name}" for name in classes], dtype=object)
    for domain, rows in _by_class(domains, features):
        out[rows] = domain.reasons(features[rows], precisions[rows])
    return list(out)


def _by_class(
    domains: Mapping[str, Domain], features: FloatMatrix
) -> Iterator[tuple[Domain, Ints | slice]]:
    """Yield each domain with rows to test, and these rows."""
    on_gpu = features[:, COMPUTE_CAPABILITY] > 0
    gpus = np.count_nonzero(on_gpu)
    for name, domain in domains.items():
        count = gpus if name == GPU else len(features) - gpus
        if count == len(features):  # the usual case, without a copy
            yield domain, slice(None)
        elif count:
            yield domain, np.flatnonzero(on_gpu == (name == GPU))


def fit_domain(features: Matrix, models: Sequence[str], precisions: Sequence[str]) -> Domain:
    """Return the domain of training rows (rows, columns of the full set)."""
    sizes, mixtures = _sizes(features), _mixtures(features)
    prototypes = _select_prototypes(mixtures)
    radius, near_radius = _radii(mixtures, prototypes, np.asarray(models))
    return Domain(
        frozenset(precisions),
        np.round(sizes.min(axis=0), DIGITS),
        np.round(sizes.max(axis=0), DIGITS),
        np.round(mixtures[prototypes], DIGITS),
        round(radius, DIGITS),
        round(near_radius, DIGITS),
    )


def parse_domain(content: Mapping[str, Any]) -> Domain:
    """Return the domain that a manifest stores.

    Without a near radius, as older versions wrote it, both radii are equal.

    Raises
    ------
    KeyError, TypeError, ValueError
        The content is malformed.
    """
    if tuple(content["cells"]) != OPERATOR_BUCKETS:
        raise ValueError("domain: the operator buckets differ from this version's")
    rows = parse_list(content["mixtures"], "mixtures")
    radius = parse_number(content["radius"], "radius")
    near_radius = parse_number(content.get("near_radius", radius), "near_radius")
    if not rows or not 0 <= near_radius <= radius <= 1:
        raise ValueError("domain: no mixtures, or radii that do not increase within [0, 1]")
    mixtures = np.zeros((len(rows), len(OPERATOR_BUCKETS)))
    for row, roots in enumerate(rows):
        for cell, root in roots.items():
            if not 0 <= int(cell) < len(OPERATOR_BUCKETS):
                raise ValueError(f"domain: unknown cell {int(cell)}")
            mixtures[row, int(cell)] = parse_number(root, "a mixture")
    if mixtures.min() < 0 or mixtures.max() > 1:
        raise ValueError("domain: a share of a mixture is outside of [0, 1]")
    bounds = [parse_numbers(content["sizes"][name], f"sizes.{name}") for name in SIZES]
    low, high = np.array(bounds, dtype=np.float64).T
    precisions = parse_texts(content["precisions"], "precisions")
    return Domain(frozenset(precisions), low, high, mixtures, radius, near_radius)


def _sizes(features: FloatMatrix) -> Array:
    logs: Array = np.log(features.take(_SIZES, axis=1) + _OFFSETS)
    return logs


def _mixtures(features: FloatMatrix) -> Array:
    roots: Array = np.sqrt(features[:, _BUCKETS], dtype=np.float64)
    return roots


def _squares(mixtures: Array, known: Array) -> Array:
    """Return squared distances (mixtures, known)."""
    squares = (mixtures**2).sum(1)[:, None] + (known**2).sum(1) - 2 * mixtures @ known.T
    out: Array = np.maximum(squares, 0)
    return out


def _select_prototypes(mixtures: Array) -> list[int]:
    """Return positions of prototypes by farthest-first traversal (Gonzalez, 1985).

    Every row is near one of them, or every traversed row if there are more than ``TRAVERSED``.
    """
    rows = np.arange(0, len(mixtures), math.ceil(len(mixtures) / TRAVERSED))
    mixtures = mixtures[rows]
    squares, twice = (mixtures**2).sum(1)[:, None], 2 * mixtures

    def distances_to(row: int) -> Array:
        """Return the Hellinger distance of each row from one of them."""
        known = mixtures[[row]]
        out: Array = np.sqrt(np.maximum(squares + (known**2).sum(1) - twice @ known.T, 0)[:, 0] / 2)
        return out

    chosen = [0]
    distance = distances_to(0)
    while len(chosen) < min(PROTOTYPES, len(mixtures)) and distance.max() > 0:
        chosen.append(int(distance.argmax()))
        distance = np.minimum(distance, distances_to(chosen[-1]))
    return [int(row) for row in rows[chosen]]


def _radii(
    mixtures: Array, prototypes: list[int], models: np.ndarray[Any, Any]
) -> tuple[float, float]:
    """Return two quantiles of distances to the nearest prototype of another model."""
    sample = np.arange(0, len(mixtures), math.ceil(len(mixtures) / SAMPLE))
    squares = _squares(mixtures[sample], mixtures[prototypes])
    squares[models[sample][:, None] == models[prototypes]] = np.inf
    nearest = squares.min(axis=1)
    nearest = nearest[np.isfinite(nearest)]  # infinite if there is only one model
    if not len(nearest):
        return 0.0, 0.0
    levels = [1 - OUTLIER_FRACTION, 1 - WIDENED_FRACTION]
    radius, near_radius = np.sqrt(np.quantile(nearest, levels) / 2).tolist()
    return radius, near_radius
