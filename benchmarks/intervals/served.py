"""Margins of rows of a left-out value, as training computes them and serving selects them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from benchmarks.intervals.left_out import LeftOut, several
from presage.models.calibration.group_margins import MIN_GROUPS
from presage.models.calibration.margins import (
    DEVICE,
    JOB,
    RELEASE,
    Margins,
    combine_widenings,
)
from presage.pipelines.evaluation import cross_validation as cv
from presage.system.arrays import Array, Ints, Mask, Names

NOT_HELD_OUT = 1  # fold of all rows: the benchmark has no gate


@dataclass(frozen=True)
class ServedMargins:
    """Margins (rows,) by lower level, and what is new in each row by novelty."""

    by_level: Mapping[float, Array]
    new: Mapping[str, Mask]


def served_margins(data: LeftOut, own: Mask, near: Mask) -> ServedMargins:
    """Return the margins of the rows ``own`` of a release that was trained on all others.

    Parameters
    ----------
    data : LeftOut
    own : ndarray of bool, shape (rows,)
        Rows of the value that is left out; all rows if none is.
    near : ndarray of bool, shape (rows,)
        Rows near the training domain of the others.
    """
    train = ~own if not own.all() else own
    metadata = data.metadata
    trained = _trained_margins(data, train)
    new: dict[str, Mask] = {JOB: ~near}
    if train is not own:
        for name in (DEVICE, RELEASE):
            column = metadata[name]
            new[name] = ~column.isin(set(column[train])).to_numpy(bool)
    devices = metadata[DEVICE].to_numpy(object)
    by_level = {}
    for level, default in trained.default.items():
        margin = np.full(len(metadata), default)
        for (code,), found in trained.devices:
            margin[devices == _names(data)[int(code)]] = found[level]
        by_level[level] = margin
    codes = np.array([tuple(new[name][i] for name in new) for i in range(len(metadata))])
    for pattern in np.unique(codes[own], axis=0):
        names = [name for name, is_new in zip(new, pattern, strict=True) if is_new]
        widening = combine_widenings(trained.novel.get(name, {}) for name in names)
        for level, margin in by_level.items():
            margin[(codes == pattern).all(axis=1)] += widening.get(level, 0.0)
    return ServedMargins(by_level, new)


def _names(data: LeftOut) -> Names:
    return np.unique(data.metadata[DEVICE].to_numpy(object))


def _trained_margins(data: LeftOut, train: Mask) -> Margins:
    """Return the margins of a release that was trained on some of the rows."""
    metadata = data.metadata
    groups = {name: metadata[name].to_numpy(object)[train] for name in ("group", DEVICE, RELEASE)}
    raw = {data.known: _by_domain(data, data.known, train)}
    for name, of_row in groups.items():
        if several(list(of_row), MIN_GROUPS):
            raw[name] = _by_domain(data, name, train)
    # Without groups to leave out, rows that were left out job by job stand in for them.
    raw["family"] = raw.get("group", raw[data.known])
    devices = metadata[DEVICE].to_numpy(object)
    codes: Ints = np.searchsorted(_names(data).astype(str), devices.astype(str))
    return cv.release_margins(
        data.y[train], raw[data.known], np.full(train.sum(), NOT_HELD_OUT), devices[train],
        codes[train, None].astype(np.float64), cv.left_out_groups(raw, groups),
    )  # fmt: skip


def _by_domain(data: LeftOut, split: str, train: Mask) -> cv.ByDomain:
    is_new = ~data.near(split) if split in (data.known, "group") else np.ones(len(train), bool)
    return cv.ByDomain(data.quantiles(split)[train], is_new[train])
