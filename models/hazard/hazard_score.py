"""Scores of predicted failure probabilities: log loss, concentration, calibration."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from presage.system.arrays import Array, Mask

DECILES = 10
_LEAST = 1e-12  # of a probability: a certain event that does not happen has a finite loss
_SIGMAS = 1.96


class Bin(NamedTuple):
    """Rows with similar predicted probabilities.

    Attributes
    ----------
    rows : int
    predicted, observed : float
        Mean predicted probability, and fraction of the rows that failed.
    low, high : float
        95 % interval of the true probability, given the observed fraction (Wilson).
    """

    rows: int
    predicted: float
    observed: float
    low: float
    high: float

    @property
    def is_calibrated(self) -> bool:
        """Whether the predicted probability lies in the interval of the observed one."""
        return self.low <= self.predicted <= self.high


def log_losses(fails: Mask, chance: Array) -> Array:
    """Return the log loss of each row, in nats."""
    chance = np.clip(chance, _LEAST, 1 - _LEAST)
    losses: Array = -np.where(fails, np.log(chance), np.log1p(-chance))
    return losses


def share_in_top(fails: Mask, chance: Array, part: float) -> float:
    """Return the share of all failures in the rows with the highest probabilities.

    Rows of equal probability count in proportion, so the result does not depend on their order.

    Parameters
    ----------
    part : float
        Fraction of the rows, within (0, 1].
    """
    left, caught = part * len(chance), 0.0
    for value in np.unique(chance)[::-1]:
        tied = chance == value
        rows = int(tied.sum())
        caught += float(fails[tied].sum()) * min(1.0, left / rows)
        left -= rows
        if left <= 0:
            break
    return caught / float(fails.sum()) if fails.any() else 0.0


def calibration_bins(fails: Mask, chance: Array, bins: int = DECILES) -> list[Bin]:
    """Return bins with equal numbers of rows, by predicted probability.

    Rows of equal probability are dealt to bins in the order of the table.
    """
    order = np.argsort(chance, kind="stable")
    found = []
    for part in np.array_split(order, bins):
        if len(part):
            rate = float(fails[part].mean())
            found.append(
                Bin(len(part), float(chance[part].mean()), rate, *_wilson(rate, len(part)))
            )
    return found


def _wilson(rate: float, rows: int) -> tuple[float, float]:
    square = _SIGMAS**2
    center = (rate + square / (2 * rows)) / (1 + square / rows)
    margin = (
        _SIGMAS / (1 + square / rows) * np.sqrt(rate * (1 - rate) / rows + square / (4 * rows**2))
    )
    return float(center - margin), float(center + margin)
