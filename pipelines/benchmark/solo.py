"""Jobs alone: the network and the baselines fitted on some rows, asked about others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from presage.features.errors import TrainingError
from presage.features.memory_parts import GIB, MEMORY_UNITS, memory_parts
from presage.features.parts import Parts, joined
from presage.features.schema import columns, matrix
from presage.features.time_parts import TIME_UNITS, time_parts
from presage.models.baselines import BASELINES
from presage.models.conformal import Array, calibrate
from presage.models.fit import LEVELS, Progress, transform_features
from presage.models.fit_parts import PartsConfig, fit_parts, quantiles_of
from presage.models.splits import Folds
from presage.pipelines import cross_validation as cv
from presage.pipelines.benchmark.rows import Rows

LEAST_ROWS = 20  # five folds of which each leaves nine to calibrate 90 % by


@dataclass(frozen=True, slots=True)
class SumTarget:
    """What is learnt as the logarithm of a sum of parts."""

    units: tuple[str, ...]
    parts: Callable[..., Parts]
    unit: float  # of the parts, in the label's
    prior: str  # column of the full features that baselines learn the residual over
    config: PartsConfig


STEP_TIME = SumTarget(TIME_UNITS, time_parts, 1.0, "roofline_s", PartsConfig(hidden=32, steps=2500))
MEMORY = SumTarget(
    MEMORY_UNITS, memory_parts, GIB, "memory_prior_bytes",
    PartsConfig(hidden=32, steps=2500, batch=256, weight_decay=0.1),
)  # fmt: skip


def cross_forecast(
    rows: Rows, folds: Folds, target: SumTarget, progress: Progress
) -> tuple[Array, dict[str, Array]]:
    """Calibrated quantiles (rows, levels) and baselines (rows,), by models that saw no like row."""
    parts, y = target.parts(rows.placements), np.log(rows.measured / target.unit)
    outputs = _outputs(target, parts, y, folds, parts, progress)
    raw = _own_fold(outputs, folds)
    quantiles = target.unit * np.exp(cv.calibrate_out_of_fold(y, raw, folds))
    x, prior = _flat(rows, parts, target)
    guesses = {
        name: _baseline_out_of_fold(name, x, rows.measured, prior, folds) for name in BASELINES
    }
    return quantiles, guesses


def forecast(
    train: Rows, test: Rows, folds: Folds, target: SumTarget, progress: Progress
) -> tuple[Array, dict[str, Array]]:
    """Calibrated quantiles (test rows, levels) and baselines of rows that are not trained on.

    Each member of the network leaves out a fold of the training rows, by which the intervals are
    calibrated; a forecast is the mean of all members (Barber et al., CV+, 2021).
    """
    parts, y = target.parts(train.placements), np.log(train.measured / target.unit)
    asked = target.parts(test.placements)
    both = _outputs(target, parts, y, folds, joined(parts, asked), progress)
    margins = cv.margins(y, _own_fold(both[:, : len(train)], folds))
    raw = both[:, len(train) :].mean(axis=0)
    quantiles = target.unit * np.exp(calibrate(raw, margins, LEVELS))
    (x, prior), (x_test, prior_test) = _flat(train, parts, target), _flat(test, asked, target)
    guesses = {
        name: _baseline(name, x, train.measured, prior, x_test, prior_test) for name in BASELINES
    }
    return quantiles, guesses


def check(rows: Rows, what: str) -> None:
    """Refuse what nothing can be learnt from.

    Raises
    ------
    TrainingError
        There are too few rows to calibrate by, or all labels are equal.
    """
    if len(rows) < LEAST_ROWS:
        raise TrainingError(
            f"{what}: {len(rows)} rows can be used, to calibrate takes {LEAST_ROWS}; "
            "give more files"
        )
    if np.ptp(rows.measured) == 0:
        raise TrainingError(
            f"{what}: the target is {rows.measured[0]:g} in every row, nothing can be learnt of "
            "it; give rows that differ"
        )


def _outputs(
    target: SumTarget, parts: Parts, y: Array, folds: Folds, asked: Parts, progress: Progress
) -> Array:
    seen = np.array([folds != fold for fold in np.unique(folds)], dtype=np.float64)
    stack = fit_parts(parts, len(target.units), y, seen, target.config, progress=progress)
    return quantiles_of(stack, asked)


def _own_fold(outputs: Array, folds: Folds) -> Array:
    """Of each row the outputs of the member that has not seen it."""
    position = np.searchsorted(np.unique(folds), folds)
    return outputs[position, np.arange(len(folds))]


def _flat(rows: Rows, parts: Parts, target: SumTarget) -> tuple[Array, Array]:
    """What the network sees, as columns: all features, context, and each unit's share."""
    full = matrix(rows.placements, "full")
    share = np.zeros((len(parts), len(target.units)))
    np.add.at(share, (np.arange(len(parts))[:, None], parts.units), parts.base)
    share /= share.sum(axis=1, keepdims=True)
    x = [transform_features(full, "full"), parts.context, np.log(share + 1e-3)]
    return np.concatenate(x, axis=1), full[:, columns("full").index(target.prior)]


def _baseline(
    name: str, x: Array, measured: Array, prior: Array, asked: Array, prior_asked: Array
) -> Array:
    model = BASELINES[name]()
    if name == "constant":
        guess: Array = model.fit(x, measured).predict(asked)
        return guess
    learnt = model.fit(x, np.log(measured / prior)).predict(asked)
    scaled: Array = np.exp(learnt) * prior_asked
    return scaled


def _baseline_out_of_fold(
    name: str, x: Array, measured: Array, prior: Array, folds: Folds
) -> Array:
    out = np.empty(len(measured))
    for fold in np.unique(folds):
        test = folds == fold
        out[test] = _baseline(name, x[~test], measured[~test], prior[~test], x[test], prior[test])
    return out
