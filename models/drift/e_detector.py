"""Evidence that a stream of outcomes no longer does what was promised, whenever one looks.

A bet turns one outcome into a factor whose mean is at most 1 for as long as the promise holds,
whatever came before. With every outcome a new unit is staked, and all that stands is multiplied by
the factor: a Shiryaev-Roberts sum. While the promise holds its mean after n outcomes is at most n,
so it takes ``threshold`` outcomes or more, on average, to reach ``threshold`` by chance. No
distribution is assumed, no sample size planned, and no look at it costs anything.

References
----------
Shin, Ramdas, Rinaldo: E-detectors: a nonparametric framework for sequential change detection,
New England Journal of Statistics in Data Science 2(2), 2024.
"""

from __future__ import annotations

import numpy as np

from presage.system.arrays import Array

BELOW, INSIDE, ABOVE = range(3)

# How far from the promise to certainty the true rate of misses may lie.
_RATES = np.array([0.1, 0.25, 0.5, 0.75])
# Of ranks. Where many like it came before, a changed outcome's rank is next to an end: the smaller
# the power, the more is staked there. Where few came, all that can be said is in which half it is.
_ENDS = np.array([0.1, 0.3, 0.6])
_HALVES = np.array([0.75, 0.95])
_MIN_RANK = 1e-9
_CERTAIN_RATE = 0.95  # what may happen that often is no surprise when it always does
_ALARM_END = 0.01  # evidence below which an alarm ends


class EDetector:
    """Sums of several bets at once, each with an equal part of the stake.

    Parameters
    ----------
    threshold : float
        Outcomes between two false alarms, on average, at least.

    Attributes
    ----------
    alarm : bool
        Since evidence was 1, until next to nothing of it is left.
    """

    def __init__(self, threshold: float) -> None:
        self._threshold = threshold
        self._sums: Array = np.zeros(1)
        self.alarm = False

    def add(self, factors: Array) -> None:
        """Take what one outcome made of every bet, shape (bets,), always as many."""
        # No sum grows beyond an alarm by itself: what has passed is forgotten in as many outcomes.
        most = self._threshold * len(factors)
        self._sums = np.minimum((self._sums + 1) * factors, most)
        self.alarm = self.evidence >= (_ALARM_END if self.alarm else 1)

    @property
    def evidence(self) -> float:
        """0 is none; 1 or more is an alarm."""
        return float(self._sums.mean()) / self._threshold


def interval_factors(below: float, above: float) -> Array:
    """Bets on misses of an interval: row ``BELOW``, ``INSIDE`` or ``ABOVE`` of shape (3, bets).

    ``below`` and ``above`` are the most that may truly miss on that side, as parts of all; a bet on
    1 or more neither gains nor loses.
    """
    too_low, not_too_low = _rate_factors(below)
    too_high, not_too_high = _rate_factors(above)
    return np.array(
        [[*too_low, *not_too_high], [*not_too_low, *not_too_high], [*not_too_low, *too_high]]
    )


def event_factors(allowed: float) -> Array:
    """Bets on an event that may happen that often at most: row 0 or 1 of shape (2, bets)."""
    happened, not_happened = _rate_factors(allowed)
    return np.array([not_happened, happened])


def rank_factors(rank: float) -> Array:
    """Bets, of shape (bets,), that outcomes have become larger, or smaller, than their like.

    ``rank`` is uniform from 0 to 1 for as long as they have not (:func:`smoothed_rank`).
    """
    ends = np.maximum([[rank], [1 - rank]], _MIN_RANK)
    near_an_end = _ENDS * ends ** (_ENDS - 1)
    in_a_half = 2 * np.where(ends < 0.5, _HALVES, 1 - _HALVES)
    return np.concatenate([near_an_end.ravel(), in_a_half.ravel()])


def smoothed_rank(value: float, before: Array, tie: float) -> float:
    """Part of all values, this one and those before, that are smaller, ties and itself by chance.

    With ``tie`` uniform from 0 to 1 the ranks of exchangeable values, each among those before it,
    are uniform and independent (Vovk, Gammerman, Shafer: Algorithmic Learning in a Random World,
    2005, section 2.2).
    """
    smaller = int(np.count_nonzero(before < value))
    equal = int(np.count_nonzero(before == value)) + 1
    return (smaller + tie * equal) / (len(before) + 1)


def _rate_factors(allowed: float) -> tuple[Array, Array]:
    if allowed >= _CERTAIN_RATE:
        return np.ones_like(_RATES), np.ones_like(_RATES)
    rates = allowed + (1 - allowed) * _RATES
    return rates / allowed, (1 - rates) / (1 - allowed)
