"""Out-of-fold forecasts and their calibration: every figure is of a job excluded from training.

A stack of networks has, for each split and fold, an ensemble that was not trained on that fold. A
release ships the by-job split's ensemble that was not trained on the held-out fold.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from presage.models.calibration.conformal import calibrate, conformal_margin
from presage.models.calibration.group_margins import MIN_GROUPS, group_margin
from presage.models.calibration.margins import (
    DEVICE,
    JOB,
    MIN_DEVICE_ROWS,
    NOVELTIES,
    RELEASE,
    ByLevel,
    Margins,
    split_by_device,
)
from presage.models.networks.ensemble import combine_member_arrays
from presage.models.training.fit import LEVELS
from presage.models.training.splits import HELD_OUT_FOLD, Folds, device_folds
from presage.system.arrays import Array, Mask, Names

SPLITS = ("job", "family")
# Splits that only calibrate: by architecture group, device and framework release.
FAR_SPLITS = ("group", DEVICE, RELEASE)

MIN_SIMILAR = 20  # rows needed for separate margins of new jobs or a device class
MIN_CALIBRATION_ROWS = 9  # rows needed to calibrate a 90 % interval

# Lower level of each interval, and its coverage.
COVERAGES = {level: round(1 - 2 * level, 6) for level in LEVELS if level < 0.5}

# The error on a class of devices that a predictor was never measured on is unknown. The assumed
# margin is half to twice (a third to thrice for the widest); for a fraction, the same in odds.
ASSUMED_MARGINS: ByLevel = {0.05: math.log(3), 0.1: math.log(2)}


@dataclass(frozen=True)
class ByDomain:
    """Uncalibrated out-of-fold quantiles (rows, levels), and which rows are not near training."""

    quantiles: Array
    is_new: Mask


@dataclass(frozen=True)
class LeftOut:
    """Uncalibrated quantiles (rows, levels) by networks not trained on the group of a row.

    Attributes
    ----------
    quantiles : ndarray of shape (rows, levels)
    groups : ndarray of str, shape (rows,)
    is_similar : ndarray of bool, shape (rows,)
        Rows whose errors are those of the novelty: new rows for jobs, else all.
    """

    quantiles: Array
    groups: Names
    is_similar: Mask


@dataclass(frozen=True)
class Members:
    """Split and fold that each member of a stack was not trained on."""

    split: tuple[str, ...]
    fold: np.ndarray[Any, np.dtype[np.int64]]

    def ensemble(self, split: str, fold: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Return the positions of the ensemble that was not trained on a fold."""
        selected = [s == split and f == fold for s, f in zip(self.split, self.fold, strict=True)]
        return np.flatnonzero(selected)


def leaves_enough(folds: Mapping[str, Folds], measured: Mask) -> bool:
    """Return whether enough rows remain for training and calibration without any one fold."""
    return all(
        (measured & (row_folds != fold)).sum() >= MIN_CALIBRATION_ROWS
        for row_folds in folds.values()
        for fold in np.unique(row_folds)
    )


def with_far_splits(
    folds: dict[str, Folds], groups: Mapping[str, Names], measured: Mask
) -> dict[str, Folds]:
    """Return the splits, and a split by each of ``FAR_SPLITS`` that has several groups.

    ``groups`` (rows,) are those of each row, by far split; their folds leave out several at once.
    """
    out = dict(folds)
    for name, of_row in groups.items():
        by_group = {name: device_folds(list(of_row))}
        several = len(np.unique(of_row[measured])) >= MIN_GROUPS
        if several and leaves_enough(by_group, measured):
            out |= by_group
    return out


def left_out_groups(raw: Mapping[str, ByDomain], groups: Mapping[str, Names]) -> dict[str, LeftOut]:
    """Return, by novelty, the forecasts that show how much its groups differ.

    Without a split by architecture group, the split by family stands in for it. An unmeasured job
    is compared with left-out rows that are not near training, as it is not.

    Parameters
    ----------
    raw : mapping of str to ByDomain
        Forecasts by split.
    groups : mapping of str to ndarray of str, shape (rows,)
        Groups of each row, by far split.
    """
    everything = np.ones(len(groups["group"]), dtype=bool)
    of_group = raw.get("group", raw["family"])
    out = {JOB: LeftOut(of_group.quantiles, groups["group"], of_group.is_new)}
    for name in (DEVICE, RELEASE):
        if name in raw:
            out[name] = LeftOut(raw[name].quantiles, groups[name], everything)
    return out


def plan_members(ensemble: int, folds: Mapping[str, Folds]) -> Members:
    """Plan ``ensemble`` members for every fold of every split; -1 marks rows without a fold."""
    numbers = {
        split: [int(f) for f in np.unique(row_folds) if f >= 0]
        for split, row_folds in folds.items()
    }
    # The held-out fold has members even without rows: a release ships them.
    numbers["job"] = sorted({HELD_OUT_FOLD, *numbers["job"]})
    plan = [(s, f) for s in folds for f in numbers[s] for _ in range(ensemble)]
    return Members(tuple(s for s, _ in plan), np.array([f for _, f in plan], dtype=np.int64))


def training_weights(members: Members, folds: dict[str, Folds]) -> Array:
    """Return row weights (members, rows): 0 on the fold that a member is not trained on."""
    trained = [folds[s] != f for s, f in zip(members.split, members.fold, strict=True)]
    return np.array(trained, dtype=np.float64)


def out_of_fold(outputs: Array, members: Members, split: str, folds: Folds) -> Array:
    """Return forecasts (rows, levels), each row from the members that were not trained on it.

    ``outputs`` has shape (members, rows, levels).
    """
    forecast = np.empty(outputs.shape[1:])
    for fold in np.unique(folds):
        rows = folds == fold
        forecast[rows] = combine_member_arrays(outputs[members.ensemble(split, int(fold))][:, rows])
    return forecast


def margins(y: Array, quantiles: Array, *, fallback_margins: ByLevel | None = None) -> ByLevel:
    """Return the conformal margin of each interval, from the rows with a value.

    ``fallback_margins`` are the margins to use if there are few rows.
    """
    use = np.isfinite(y)
    if fallback_margins is not None and use.sum() < MIN_SIMILAR:
        return fallback_margins
    out = {}
    for level, coverage in COVERAGES.items():
        low, high = LEVELS.index(level), len(LEVELS) - 1 - LEVELS.index(level)
        out[level] = conformal_margin(
            y[use], quantiles[use, low], quantiles[use, high], coverage=coverage
        )
    return out


def calibrate_out_of_fold(y: Array, quantiles: Array, folds: Folds, devices: Names) -> Array:
    """Calibrate each fold with margins from the other folds' rows, device by device."""
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
    requested: Array,
    requested_devices: Names,
    *,
    fallback_margins: ByLevel | None = None,
) -> Array:
    """Calibrate rows with margins from other rows, which were left out in turn.

    Parameters
    ----------
    y, left_out : ndarray of shape (rows,) and (rows, levels)
        Measured values, and their out-of-fold quantiles.
    devices : ndarray of str, shape (rows,)
    requested : ndarray of shape (rows to calibrate, levels)
    requested_devices : ndarray of str, shape (rows to calibrate,)
    """
    out = np.empty_like(requested)
    for rows, by in split_by_device(requested_devices, devices):
        found = margins(y[by], left_out[by], fallback_margins=fallback_margins)
        out[rows] = calibrate(requested[rows], found, LEVELS)
    return out


def calibrate_by_domain(
    y: Array,
    raw: ByDomain,
    folds: Folds,
    devices: Names,
    by_family: ByDomain,
    *,
    fallback_margins: ByLevel | None = None,
) -> Array:
    """Calibrate each fold with margins from rows of the other folds, new ones and others apart.

    If a split has few new rows, as the by-job split may, their margins come from the new rows of
    the by-family split.
    """
    out = np.empty_like(raw.quantiles)
    for fold in np.unique(folds):
        others = (folds != fold) & np.isfinite(y)
        for is_new in (False, True):
            rows = (folds == fold) & (raw.is_new == is_new)
            source, similar = raw, others & (raw.is_new == is_new)
            if is_new and similar.sum() < MIN_SIMILAR:
                source, similar = by_family, others & by_family.is_new
            if similar.sum() < MIN_SIMILAR:
                source, similar = raw, others
            out[rows] = calibrate_new(
                y[similar], source.quantiles[similar], devices[similar],
                raw.quantiles[rows], devices[rows], fallback_margins=fallback_margins,
            )  # fmt: skip
    return out


def release_margins(
    y: Array,
    of_job: ByDomain,
    job_folds: Folds,
    devices: Names,
    identity: Array,
    unseen: Mapping[str, LeftOut],
    start: Margins | None = None,
) -> Margins:
    """Return the margins that a release ships.

    They come from out-of-fold rows that the gate does not use; if those are too few, they are the
    largest margins of ``start``.

    Parameters
    ----------
    y : ndarray of shape (rows,)
    of_job : ByDomain
        Forecasts of the split by job.
    job_folds : ndarray of int, shape (rows,)
    devices : ndarray of str, shape (rows,)
    identity : ndarray of shape (rows, columns)
        Inputs that identify a device.
    unseen : mapping of str to LeftOut
        By novelty, forecasts of rows without training rows of their group.
    start : Margins, optional
        Margins of the networks that were fine-tuned. Their widening counts where ``unseen`` has
        none.
    """
    use = (job_folds != HELD_OUT_FOLD) & np.isfinite(y)
    if start is not None and use.sum() < MIN_SIMILAR:
        nothing = {name: dict.fromkeys(start.default, 0.0) for name in NOVELTIES}
        return Margins(start.largest, nothing)
    default = margins(y[use], of_job.quantiles[use])
    novel = {} if start is None else dict(start.novel)
    for name, left_out in unseen.items():
        similar = left_out.is_similar & use
        if similar.sum() < MIN_SIMILAR:
            similar = use
        found = group_margins(y[similar], left_out.quantiles[similar], left_out.groups[similar])
        novel[name] = {level: max(0.0, found[level] - default[level]) for level in default}
    novel.setdefault(DEVICE, novel[JOB])  # too few devices show nothing of further ones
    own = []
    for device in np.unique(devices[use]):
        here = use & (devices == device)
        if here.sum() >= MIN_DEVICE_ROWS:
            found = margins(y[here], of_job.quantiles[here])
            rows = np.unique(identity[here], axis=0).tolist()
            own += [(tuple(row), found) for row in rows]
    return Margins(default, novel, tuple(own))


def group_margins(y: Array, quantiles: Array, groups: Names) -> ByLevel:
    """Return the margin of each interval for rows of a further group.

    ``quantiles`` (rows, levels) are by networks that were not trained on the group of a row.
    """
    return {
        level: group_margin(
            y, quantiles[:, LEVELS.index(level)], quantiles[:, -1 - LEVELS.index(level)], groups,
            coverage=coverage,
        )
        for level, coverage in COVERAGES.items()
    }  # fmt: skip
