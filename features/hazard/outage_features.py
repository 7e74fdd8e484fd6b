"""Features of the outage history of a node or device, as of one moment.

The hazard model uses only ``decayed_repairs``: of these features it is the one that predicts the
next failure (docs/benchmarks/hazard.md). The others are inputs of its evaluation, and of policies.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from presage.errors import ConfigError
from presage.system.arrays import Array


class OutageFeatures(NamedTuple):
    """Features of one node or device.

    Attributes
    ----------
    since_repair_s : float
        Time since the end of its last outage; infinite if it was never down.
    repair_s : float
        Length of the last outage that is over; 0 if there is none.
    failures : int
        Number of outages so far.
    age_s : float
        Time for which it has been observed.
    decayed_repairs : tuple of float
        Number of repairs, each halved once in each half-life that has passed since it.
    sibling_repairs : tuple of float
        The same, summed over the other devices of the node.
    """

    since_repair_s: float
    repair_s: float
    failures: int
    age_s: float
    decayed_repairs: tuple[float, ...]
    sibling_repairs: tuple[float, ...]


def outage_features(
    spans: Sequence[tuple[float, float]],
    now_s: float,
    half_lives_s: Sequence[float],
    *,
    observed_from_s: float = 0.0,
    siblings: Iterable[Sequence[tuple[float, float]]] = (),
) -> OutageFeatures:
    """Return the features of a node or device at ``now_s``; later events are not read.

    Parameters
    ----------
    spans : sequence of (from_s, until_s)
        Its outages.
    siblings : iterable of such sequences
        Outages of the other devices of its node.

    Raises
    ------
    ConfigError
        A half-life is not a finite number above 0.
    """
    check_half_lives(half_lives_s)
    past = sorted((from_s, until_s) for from_s, until_s in spans if from_s <= now_s)
    over = [span for span in past if span[1] <= now_s]
    last = max(over, key=lambda span: span[1], default=None)
    others = np.zeros(len(half_lives_s))
    for one in siblings:
        others += decayed(_repair_ages([*one], now_s), half_lives_s)
    return OutageFeatures(
        math.inf if last is None else now_s - last[1],
        0.0 if last is None else last[1] - last[0],
        len(past),
        max(0.0, now_s - observed_from_s),
        tuple(decayed(_repair_ages(past, now_s), half_lives_s).tolist()),
        tuple(others.tolist()),
    )


def decayed(ages_s: Array, half_lives_s: Sequence[float]) -> Array:
    """Return the sum of 0.5^(age / half-life) for each half-life.

    Parameters
    ----------
    ages_s : ndarray of shape (events,)
        Time since each event; negative ages count as 0, as after a step back of a clock.

    Returns
    -------
    ndarray of shape (half-lives,)
    """
    ages_s = np.maximum(ages_s, 0.0)
    sums: Array = (0.5 ** (ages_s[:, None] / np.asarray(half_lives_s))).sum(axis=0)
    return sums


def check_half_lives(half_lives_s: Sequence[float]) -> None:
    """Raise ConfigError unless all half-lives are finite numbers above 0."""
    for value in half_lives_s:
        if not (math.isfinite(value) and value > 0):
            raise ConfigError(f"half-life {value} s, must be a finite number > 0")


def _repair_ages(spans: Sequence[tuple[float, float]], now_s: float) -> Array:
    return np.array([now_s - until_s for _, until_s in spans if until_s <= now_s], dtype=float)
