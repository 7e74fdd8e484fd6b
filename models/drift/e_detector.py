"""E-detector: sequential evidence that a stream of outcomes violates an expectation.

A bet turns one outcome into a factor whose mean is at most 1 while the expectation holds, given all
earlier outcomes. Every outcome adds a stake of 1, and the sum is multiplied by the factor: a
Shiryaev-Roberts sum. While the expectation holds, its mean after n outcomes is at most n, so it
takes at least ``threshold`` outcomes, on average, to reach ``threshold`` by chance. This assumes no
distribution and no sample size, and the evidence may be checked after every outcome.

References
----------
Shin, Ramdas, Rinaldo: E-detectors: a nonparametric framework for sequential change detection,
New England Journal of Statistics in Data Science 2(2), 2024.
"""

from __future__ import annotations

import numpy as np

from presage.system.arrays import Array

BELOW, INSIDE, ABOVE = range(3)

# True rates of misses to bet on, as fractions of the way from the expected rate to 1.
_RATES = np.array([0.1, 0.25, 0.5, 0.75])
# Bets on ranks. With many comparable outcomes before, the rank of a changed outcome is close to an
# end: the smaller the power, the more is bet there. With few, only the half of the rank is known.
_ENDS = np.array([0.1, 0.3, 0.6])
_HALVES = np.array([0.75, 0.95])
_MIN_RANK = 1e-9
_CERTAIN_RATE = 0.95  # an event allowed at this rate is not bet on
_ALARM_END = 0.01  # evidence below which an alarm ends


class EDetector:
    """Sums of several bets, each with an equal part of the stake.

    Parameters
    ----------
    threshold : float
        Least average number of outcomes between two false alarms.

    Attributes
    ----------
    alarm : bool
        True from evidence 1 until the evidence has almost vanished.
    """

    def __init__(self, threshold: float) -> None:
        self._threshold = threshold
        self._sums: Array = np.zeros(1)
        self.alarm = False

    def add(self, factors: Array) -> None:
        """Add the factors of one outcome, shape (bets,), the same number every time."""
        # Bounded sums: after a change ends, the evidence vanishes within as many outcomes.
        most = self._threshold * len(factors)
        self._sums = np.minimum((self._sums + 1) * factors, most)
        self.alarm = self.evidence >= (_ALARM_END if self.alarm else 1)

    @property
    def evidence(self) -> float:
        """Evidence of a violation: 0 is none; 1 or more is an alarm."""
        return float(self._sums.mean()) / self._threshold


def interval_factors(below: float, above: float) -> Array:
    """Return factors of bets on misses of an interval, shape (3, bets).

    The rows are ``BELOW``, ``INSIDE`` and ``ABOVE``. ``below`` and ``above`` are the largest
    allowed fractions of misses on each side; near 1, the factors are 1.
    """
    too_low, not_too_low = _rate_factors(below)
    too_high, not_too_high = _rate_factors(above)
    return np.array(
        [[*too_low, *not_too_high], [*not_too_low, *not_too_high], [*not_too_low, *too_high]]
    )


def event_factors(allowed: float) -> Array:
    """Return factors of bets on an event of at most this rate, shape (2, bets).

    Row 1 is for outcomes with the event, row 0 for those without.
    """
    happened, not_happened = _rate_factors(allowed)
    return np.array([not_happened, happened])


def rank_factors(rank: float) -> Array:
    """Return factors (bets,) of bets that outcomes became larger or smaller than comparable ones.

    ``rank`` is uniform in (0, 1) while they have not changed (:func:`smoothed_rank`).
    """
    ends = np.maximum([[rank], [1 - rank]], _MIN_RANK)
    near_an_end = _ENDS * ends ** (_ENDS - 1)
    in_a_half = 2 * np.where(ends < 0.5, _HALVES, 1 - _HALVES)
    return np.concatenate([near_an_end.ravel(), in_a_half.ravel()])


def smoothed_rank(value: float, before: Array, tie: float) -> float:
    """Return the fraction of smaller values among a value and those before it.

    Ties, and the value itself, count with the fraction ``tie``. If ``tie`` is uniform in (0, 1),
    the ranks of exchangeable values among their predecessors are uniform and independent (Vovk,
    Gammerman, Shafer: Algorithmic Learning in a Random World, 2005, section 2.2).
    """
    smaller = int(np.count_nonzero(before < value))
    equal = int(np.count_nonzero(before == value)) + 1
    return (smaller + tie * equal) / (len(before) + 1)


def _rate_factors(allowed: float) -> tuple[Array, Array]:
    if allowed >= _CERTAIN_RATE:
        return np.ones_like(_RATES), np.ones_like(_RATES)
    rates = allowed + (1 - allowed) * _RATES
    return rates / allowed, (1 - rates) / (1 - allowed)
