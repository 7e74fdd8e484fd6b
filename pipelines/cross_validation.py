"""Out-of-fold forecasts and their calibration: every number here is of a job not trained on.

One stack of networks holds, for each split and fold, an ensemble that never saw that fold. The
ensemble of the by-job split that did not see the held-out fold is the one a release ships.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from presage.models.conformal import Array, calibrate, conformal_margin
from presage.models.fit import LEVELS
from presage.models.splits import HELD_OUT_FOLD, Folds

SPLITS = ("job", "family")

Strange = np.ndarray[Any, np.dtype[np.bool_]]
LEAST_ALIKE = 20  # rows that margins of their own take

# The interval that begins at a level, and its coverage.
COVERAGES = {level: round(1 - 2 * level, 6) for level in LEVELS if level < 0.5}


@dataclass(frozen=True)
class Members:
    """Which fold of which split each member of a stack has not seen."""

    split: tuple[str, ...]
    fold: np.ndarray[Any, np.dtype[np.int64]]

    def of(self, split: str, fold: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Positions of the ensemble that did not see a fold."""
        wanted = [s == split and f == fold for s, f in zip(self.split, self.fold, strict=True)]
        return np.flatnonzero(wanted)


def plan_members(ensemble: int, folds: Mapping[str, Folds]) -> Members:
    """``ensemble`` members for every fold of every split; -1 marks rows that are none."""
    numbers = {
        split: [int(f) for f in np.unique(of_row) if f >= 0] for split, of_row in folds.items()
    }
    # The held-out fold has its members even where it has no row: a release ships them.
    numbers["job"] = sorted({HELD_OUT_FOLD, *numbers["job"]})
    plan = [(s, f) for s in SPLITS for f in numbers[s] for _ in range(ensemble)]
    return Members(tuple(s for s, _ in plan), np.array([f for _, f in plan], dtype=np.int64))


def training_weights(members: Members, folds: dict[str, Folds]) -> Array:
    """Row weights of shape (members, rows): 0 on the fold a member may not see."""
    seen = [folds[s] != f for s, f in zip(members.split, members.fold, strict=True)]
    return np.array(seen, dtype=np.float64)


def out_of_fold(outputs: Array, members: Members, split: str, folds: Folds) -> Array:
    """Ensemble means of shape (rows, levels), each row by the members that have not seen it.

    ``outputs`` has shape (members, rows, levels).
    """
    forecast = np.empty(outputs.shape[1:])
    for fold in np.unique(folds):
        rows = folds == fold
        forecast[rows] = outputs[members.of(split, int(fold))][:, rows].mean(axis=0)
    return forecast


def margins(y: Array, quantiles: Array, rows: Strange | None = None) -> dict[float, float]:
    """Conformal margin of each interval, from the rows marked (all by default) with a value."""
    use = np.isfinite(y) if rows is None else rows & np.isfinite(y)
    out = {}
    for level, coverage in COVERAGES.items():
        low, high = LEVELS.index(level), len(LEVELS) - 1 - LEVELS.index(level)
        out[level] = conformal_margin(
            y[use], quantiles[use, low], quantiles[use, high], coverage=coverage
        )
    return out


def calibrate_out_of_fold(
    y: Array, quantiles: Array, folds: Folds, strange: Strange | None = None
) -> Array:
    """Calibrate each fold by margins that the other folds' rows give.

    ``strange`` marks rows out of the domain of the other folds: their margins are their own
    where there are enough of them.
    """
    out = np.empty_like(quantiles)
    kinds = np.zeros(len(y), dtype=np.bool_) if strange is None else strange
    for fold in np.unique(folds):
        for kind in (False, True):
            rows = (folds == fold) & (kinds == kind)
            alike = (folds != fold) & (kinds == kind) & np.isfinite(y)
            use = alike if alike.sum() >= LEAST_ALIKE else folds != fold
            if rows.any():
                out[rows] = calibrate(quantiles[rows], margins(y, quantiles, use), LEVELS)
    return out


def release_margins(y: Array, quantiles: Array, job_folds: Folds) -> dict[float, float]:
    """Margins that a release ships: from out-of-fold rows that are not the gate's jury."""
    return margins(y, quantiles, job_folds != HELD_OUT_FOLD)


def stranger_margins(
    y: Array, quantiles: Array, strange: Strange, shipped: dict[float, float]
) -> dict[float, float]:
    """What the margins of strangers of unseen families are beyond those shipped, at least 0."""
    use = strange & np.isfinite(y)
    if use.sum() < LEAST_ALIKE:
        use = np.isfinite(y)
    found = margins(y, quantiles, use)
    return {level: max(found[level] - shipped[level], 0.0) for level in shipped}
