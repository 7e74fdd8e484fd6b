"""Out-of-fold forecasts and their calibration: every number here is of a job not trained on.

One stack of networks holds, for each split and fold, an ensemble that never saw that fold. The
ensemble of the by-job split that did not see the held-out fold is the one a release ships.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from presage.models.calibration.conformal import calibrate, conformal_margin
from presage.models.calibration.margins import LEAST_OF_DEVICE, ByLevel, Margins, by_device
from presage.models.networks.ensemble import combined_array
from presage.models.training.fit import LEVELS
from presage.models.training.splits import HELD_OUT_FOLD, Folds, device_folds
from presage.system.arrays import Array, Mask, Names

SPLITS = ("job", "family")

LEAST_ALIKE = 20  # rows that margins of their own take, of strangers or of a class of devices
LEAST_SEEN = 9  # rows that a 90 % interval is calibrated by
SEVERAL_DEVICES = 3  # from as many kinds on, leaving some out tells how wrong an unknown one's are

# The interval that begins at a level, and its coverage.
COVERAGES = {level: round(1 - 2 * level, 6) for level in LEVELS if level < 0.5}

# Of a class of devices that a predictor was never measured on nobody knows how wrong it is. Half
# to twice (a third to thrice for the widest) is what we dare say; of a fraction, as much in odds.
UNMEASURED: ByLevel = {0.05: math.log(3), 0.1: math.log(2)}


@dataclass(frozen=True)
class ByDomain:
    """Uncalibrated out-of-fold quantiles (rows, levels), and which rows are strangers there."""

    quantiles: Array
    strange: Mask


@dataclass(frozen=True)
class Members:
    """Which fold of which split each member of a stack has not seen."""

    split: tuple[str, ...]
    fold: np.ndarray[Any, np.dtype[np.int64]]

    def of(self, split: str, fold: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Positions of the ensemble that did not see a fold."""
        wanted = [s == split and f == fold for s, f in zip(self.split, self.fold, strict=True)]
        return np.flatnonzero(wanted)


def leaves_enough(folds: Mapping[str, Folds], measured: Mask) -> bool:
    """Whether enough rows remain, to learn and calibrate by, whichever fold is left out."""
    return all(
        (measured & (of_row != fold)).sum() >= LEAST_SEEN
        for of_row in folds.values()
        for fold in np.unique(of_row)
    )


def with_devices(folds: dict[str, Folds], devices: Names, measured: Mask) -> dict[str, Folds]:
    """The splits, and one that leaves devices out where there are several."""
    by_device = {"device": device_folds(list(devices))}
    several = len(np.unique(devices[measured])) >= SEVERAL_DEVICES
    return {**folds, **by_device} if several and leaves_enough(by_device, measured) else folds


def plan_members(ensemble: int, folds: Mapping[str, Folds]) -> Members:
    """``ensemble`` members for every fold of every split; -1 marks rows that are none."""
    numbers = {
        split: [int(f) for f in np.unique(of_row) if f >= 0] for split, of_row in folds.items()
    }
    # The held-out fold has its members even where it has no row: a release ships them.
    numbers["job"] = sorted({HELD_OUT_FOLD, *numbers["job"]})
    plan = [(s, f) for s in folds for f in numbers[s] for _ in range(ensemble)]
    return Members(tuple(s for s, _ in plan), np.array([f for _, f in plan], dtype=np.int64))


def training_weights(members: Members, folds: dict[str, Folds]) -> Array:
    """Row weights of shape (members, rows): 0 on the fold a member may not see."""
    seen = [folds[s] != f for s, f in zip(members.split, members.fold, strict=True)]
    return np.array(seen, dtype=np.float64)


def out_of_fold(outputs: Array, members: Members, split: str, folds: Folds) -> Array:
    """What ensembles say, (rows, levels), each row by the members that have not seen it.

    ``outputs`` has shape (members, rows, levels).
    """
    forecast = np.empty(outputs.shape[1:])
    for fold in np.unique(folds):
        rows = folds == fold
        forecast[rows] = combined_array(outputs[members.of(split, int(fold))][:, rows])
    return forecast


def margins(y: Array, quantiles: Array, *, of_few: ByLevel | None = None) -> ByLevel:
    """Conformal margin of each interval, from the rows with a value.

    ``of_few`` are those to keep to where the rows are few.
    """
    use = np.isfinite(y)
    if of_few is not None and use.sum() < LEAST_ALIKE:
        return of_few
    out = {}
    for level, coverage in COVERAGES.items():
        low, high = LEVELS.index(level), len(LEVELS) - 1 - LEVELS.index(level)
        out[level] = conformal_margin(
            y[use], quantiles[use, low], quantiles[use, high], coverage=coverage
        )
    return out


def calibrate_out_of_fold(y: Array, quantiles: Array, folds: Folds, devices: Names) -> Array:
    """Calibrate each fold by margins that the other folds' rows give, device by device."""
    out = np.empty_like(quantiles)
    for fold in np.unique(folds):
        rows = np.flatnonzero(folds == fold)
        by = np.flatnonzero((folds != fold) & np.isfinite(y))
        out[rows] = calibrate_new(y[by], quantiles[by], devices[by], quantiles[rows], devices[rows])
    return out


def calibrate_new(
    y: Array,
    left_out: Array,
    devices: Names,
    asked: Array,
    asked_on: Names,
    *,
    of_few: ByLevel | None = None,
) -> Array:
    """Calibrate rows that are asked, by margins that other rows, left out in turn, give.

    Parameters
    ----------
    y, left_out : ndarray of shape (rows,) and (rows, levels)
        Measured values, and their quantiles by networks that had not seen them.
    devices : ndarray of str, shape (rows,)
    asked : ndarray of shape (rows asked, levels)
    asked_on : ndarray of str, shape (rows asked,)
    """
    out = np.empty_like(asked)
    for rows, by in by_device(asked_on, devices):
        found = margins(y[by], left_out[by], of_few=of_few)
        out[rows] = calibrate(asked[rows], found, LEVELS)
    return out


def calibrate_by_domain(
    y: Array,
    raw: ByDomain,
    folds: Folds,
    devices: Names,
    of_families: ByDomain,
    *,
    of_few: ByLevel | None = None,
) -> Array:
    """Calibrate each fold by margins that rows of the other folds give, strangers by strangers'.

    Where a split has few strangers, as among jobs left out, those among families left out say
    what a stranger's margins are.
    """
    out = np.empty_like(raw.quantiles)
    for fold in np.unique(folds):
        others = (folds != fold) & np.isfinite(y)
        for strange in (False, True):
            rows = (folds == fold) & (raw.strange == strange)
            source, alike = raw, others & (raw.strange == strange)
            if strange and alike.sum() < LEAST_ALIKE:
                source, alike = of_families, others & of_families.strange
            if alike.sum() < LEAST_ALIKE:
                source, alike = raw, others
            out[rows] = calibrate_new(
                y[alike], source.quantiles[alike], devices[alike],
                raw.quantiles[rows], devices[rows], of_few=of_few,
            )  # fmt: skip
    return out


def release_margins(
    y: Array,
    of_job: ByDomain,
    job_folds: Folds,
    devices: Names,
    identity: Array,
    unseen: Sequence[ByDomain],
    start: Margins | None = None,
) -> Margins:
    """Margins that a release ships.

    They come from out-of-fold rows that are not the gate's jury; where those are too few, they
    stay those of a stranger to ``start``. ``identity`` (rows, columns) is what networks see of
    which device it is. ``unseen`` are the splits that leave out what makes a stranger, families
    and devices; the one whose strangers are further off counts.
    """
    use = (job_folds != HELD_OUT_FOLD) & np.isfinite(y)
    if start is not None and use.sum() < LEAST_ALIKE:
        return Margins(start.of_strangers, dict.fromkeys(start.strangers, 0.0))
    everywhere = margins(y[use], of_job.quantiles[use])
    further = dict.fromkeys(everywhere, 0.0)
    for split in unseen:
        alike = split.strange & use
        if alike.sum() < LEAST_ALIKE:
            alike = use
        found = margins(y[alike], split.quantiles[alike])
        further = {k: max(more, found[k] - everywhere[k]) for k, more in further.items()}
    own = []
    for device in np.unique(devices[use]):
        here = use & (devices == device)
        if here.sum() >= LEAST_OF_DEVICE:
            found = margins(y[here], of_job.quantiles[here])
            own += [(tuple(who), found) for who in np.unique(identity[here], axis=0).tolist()]
    return Margins(everywhere, further, tuple(own))
