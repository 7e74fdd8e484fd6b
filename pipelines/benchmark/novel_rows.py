"""Calibration of test rows by what is new in them: devices, framework releases, jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from presage.features.columns.schema import matrix
from presage.features.device.device_class import DEVICE_CLASSES, device_classes
from presage.features.job.job_table import precision_codes
from presage.models.calibration.conformal import calibrate
from presage.models.calibration.group_margins import MIN_GROUPS
from presage.models.calibration.margins import ByLevel, split_by_device
from presage.models.calibration.training_domain import classify, fit_domain
from presage.models.training.fit import LEVELS
from presage.pipelines.benchmark.benchmark_rows import Rows
from presage.pipelines.benchmark.colocated import Colocated
from presage.pipelines.evaluation import cross_validation as cv
from presage.system.arrays import Array, FloatMatrix, Mask, Names


def columns_to_leave_out(new: Mapping[str, Mask], rows: int, known: str) -> list[str]:
    """Return the columns by which training rows have to be left out to calibrate test rows.

    Parameters
    ----------
    new : mapping of str to ndarray of bool, shape (rows,)
        Rows in which each column is new.
    rows : int
    known : str
        Column for rows in which nothing is new.
    """
    return [*new, *([known] if not is_any_new(new, rows).all() else [])]


def is_any_new(new: Mapping[str, Mask], rows: int) -> Mask:
    """Return in which of the rows anything is new, shape (rows,)."""
    out: Mask = np.logical_or.reduce([np.zeros(rows, dtype=bool), *new.values()])
    return out


def calibrate_novel(
    y: Array,
    left_out: Mapping[str, Array],
    train: pd.DataFrame,
    requested: Array,
    test: pd.DataFrame,
    new: Mapping[str, Mask],
) -> Array:
    """Calibrate test rows in which something is new; return the others unchanged.

    If several columns are new in a row, the largest margin counts. A row on a device with enough
    training rows is calibrated with these, unless its source is new.

    Parameters
    ----------
    y : ndarray of shape (training rows,)
    left_out : mapping of str to ndarray of shape (training rows, levels)
        Quantiles by networks that were not trained on a row's value of a column, by column.
    train, test : DataFrame
        Metadata of the rows.
    requested : ndarray of shape (test rows, levels)
    new : mapping of str to ndarray of bool, shape (test rows,)
        Rows in which each column is new.
    """
    out = requested.copy()
    devices = [rows["device"].to_numpy(object) for rows in (test, train)]
    for columns, rows in _by_columns(new):
        for here, by in split_by_device(devices[0][rows], devices[1]):
            margins = [_margins(column, y, left_out[column], train, by) for column in columns]
            largest = {level: max(one[level] for one in margins) for level in cv.COVERAGES}
            at = np.flatnonzero(rows)[here]
            out[at] = calibrate(requested[at], largest, LEVELS)
    return out


def _margins(column: str, y: Array, left_out: Array, train: pd.DataFrame, by: Mask) -> ByLevel:
    """Return the margins for a new value of a column, from the rows ``by`` if they have several."""
    groups = train[column].to_numpy(object)
    if column == "source" or len(set(groups[by])) < MIN_GROUPS:
        by = np.ones(len(y), dtype=bool)
    return cv.group_margins(y[by], left_out[by], groups[by])


def _by_columns(new: Mapping[str, Mask]) -> list[tuple[Sequence[str], Mask]]:
    """Return the rows in which exactly some columns are new, for each such set of columns."""
    if not new:
        return []
    flags = np.stack(list(new.values()), axis=1)
    return [
        (
            [name for name, is_new in zip(new, pattern, strict=True) if is_new],
            (flags == pattern).all(axis=1),
        )
        for pattern in np.unique(flags, axis=0)
        if pattern.any()
    ]


@dataclass(frozen=True)
class DomainRows:
    """Jobs that a training domain is fitted on; of co-locations, all members.

    Attributes
    ----------
    features : ndarray of shape (rows, columns of the full set)
    models, precisions : ndarray of str, shape (rows,)
    """

    features: FloatMatrix
    models: Names
    precisions: Names

    def near(self, train: DomainRows) -> Mask:
        """Return which rows are near the training domain of other rows, shape (rows,)."""
        classes = device_classes(train.features)
        domains = {}
        for name in DEVICE_CLASSES:
            use = classes == name
            if use.any():
                domains[name] = fit_domain(
                    train.features[use], list(train.models[use]), list(train.precisions[use])
                )
        _, near = classify(domains, self.features, precision_codes(self.precisions))
        return near

    def take(self, rows: Mask) -> DomainRows:
        """Return some of the rows."""
        return DomainRows(self.features[rows], self.models[rows], self.precisions[rows])


def of_solo(rows: Rows) -> DomainRows:
    """Return the jobs of solo rows."""
    jobs = [placement.job.job for placement in rows.placements]
    return DomainRows(
        matrix(rows.placements, "full"),
        np.array([job.name for job in jobs], dtype=object),
        np.array([job.precision for job in jobs], dtype=object),
    )


def of_colocated(rows: Colocated) -> DomainRows:
    """Return the members of co-locations."""
    models, precisions = (rows.members[name].to_numpy(object) for name in ("model", "precision"))
    return DomainRows(rows.features, models, precisions)
