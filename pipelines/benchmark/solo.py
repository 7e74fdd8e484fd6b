"""Jobs alone: the network and the baselines fitted on some rows, asked about others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from presage.features.job import JobFeatures
from presage.features.memory_parts import GIB, MEMORY_UNITS, memory_parts
from presage.features.parts import Parts, joined
from presage.features.schema import columns, matrix
from presage.features.time_parts import HOST_UNITS, TIME_UNITS, time_parts
from presage.models.baselines import BASELINES
from presage.models.conformal import Array, calibrate
from presage.models.fit import LEVELS, Progress, transform_features
from presage.models.fit_parts import PartsConfig, fit_parts, quantiles_of
from presage.models.splits import Folds
from presage.pipelines import cross_validation as cv
from presage.pipelines.benchmark.rows import Rows, solo_rows
from presage.pipelines.benchmark.splits import SPLITS, folds_of, novelty, split_folds
from presage.pipelines.benchmark.task import Answers
from presage.pipelines.campaigns import Campaign


@dataclass(frozen=True, slots=True)
class SumTarget:
    """What is learnt as the logarithm of a sum of parts."""

    units: tuple[str, ...]
    parts: Callable[..., Parts]
    unit: float  # of the parts, in the label's
    prior: str | None  # column of the full features that baselines learn the residual over
    config: PartsConfig

    def to_learnt(self, measured: Array) -> Array:
        """Logarithm of the sum, or of the ratio of a busy share to the idle one."""
        if self.config.against:
            share = np.clip(measured, LEAST_SHARE, 1 - LEAST_SHARE)
            return np.log(share / (1 - share))
        return np.log(measured / self.unit)

    def to_measured(self, learnt: Array) -> Array:
        """The way back."""
        if self.config.against:
            return 1 / (1 + np.exp(-learnt))
        scaled: Array = self.unit * np.exp(learnt)
        return scaled


LEAST_SHARE = 2e-3
UTILIZATION = SumTarget(
    TIME_UNITS, time_parts, 1.0, None,
    PartsConfig(hidden=32, steps=2500, against=len(HOST_UNITS)),
)  # fmt: skip
STEP_TIME = SumTarget(TIME_UNITS, time_parts, 1.0, "roofline_s", PartsConfig(hidden=32, steps=2500))
MEMORY = SumTarget(
    MEMORY_UNITS, memory_parts, GIB, "memory_prior_bytes",
    PartsConfig(hidden=32, steps=2500, batch=256, weight_decay=0.1),
)  # fmt: skip


@dataclass(frozen=True)
class SoloTask:
    """A measurement of jobs alone.

    Attributes
    ----------
    column : str
        Of `executions`.
    wanted : callable
        Which jobs.
    """

    column: str
    wanted: Callable[[JobFeatures], bool]
    unit: str
    target: SumTarget
    scale: float = 1.0
    splits: tuple[str, ...] = SPLITS

    def rows(self, campaigns: Sequence[Campaign]) -> Rows:
        """Rows of all campaigns."""
        return solo_rows(campaigns, self.column, self.wanted)

    def cross_forecast(self, rows: Rows, split: str, *, seed: int, progress: Progress) -> Answers:
        """Every row by models that saw no like row; the folds' margins are those of the others.

        Rows that were not measured are forecast and not learnt from.
        """
        target, folds = self._seeded(seed), split_folds(rows.who, split, seed=seed)
        parts, y = target.parts(rows.placements), target.to_learnt(rows.measured)
        raw = _own_fold(_outputs(target, parts, y, folds, parts, progress), folds)
        quantiles = target.to_measured(cv.calibrate_out_of_fold(y, raw, folds))
        return Answers(quantiles, _guesses(rows, parts, target, folds))

    def guesses(self, rows: Rows, folds: Folds) -> dict[str, Array]:
        """Every row by baselines that saw no row of its fold."""
        return _guesses(rows, self.target.parts(rows.placements), self.target, folds)

    def forecast(self, train: Rows, test: Rows, *, seed: int, progress: Progress) -> Answers:
        """Rows that are not trained on, by the mean of all members of the network.

        Each member leaves out a fold of the training rows, by which the intervals are calibrated
        (Barber et al., CV+, 2021).
        """
        target, train = self._seeded(seed), train.take(np.isfinite(train.measured))
        folds = folds_of(list(train.who[novelty(train.who, test.who)]), seed=seed)
        parts, y = target.parts(train.placements), target.to_learnt(train.measured)
        asked = target.parts(test.placements)
        both = _outputs(target, parts, y, folds, joined(parts, asked), progress)
        margins = cv.margins(y, _own_fold(both[:, : len(train)], folds))
        raw = both[:, len(train) :].mean(axis=0)
        quantiles = target.to_measured(calibrate(raw, margins, LEVELS))
        sides = _flat(train, parts, target), _flat(test, asked, target)
        guesses = {
            name: _baseline(name, target, sides[0], train.measured, sides[1]) for name in BASELINES
        }
        return Answers(quantiles, guesses)

    def _seeded(self, seed: int) -> SumTarget:
        return replace(self.target, config=replace(self.target.config, seed=seed))


def _outputs(
    target: SumTarget, parts: Parts, y: Array, folds: Folds, asked: Parts, progress: Progress
) -> Array:
    ran = np.isfinite(y)
    seen = np.array([folds[ran] != fold for fold in np.unique(folds)], dtype=np.float64)
    stack = fit_parts(
        parts.take(ran), len(target.units), y[ran], seen, target.config, progress=progress
    )
    return quantiles_of(stack, asked)


def _own_fold(outputs: Array, folds: Folds) -> Array:
    """Of each row the outputs of the member that has not seen it."""
    position = np.searchsorted(np.unique(folds), folds)
    return outputs[position, np.arange(len(folds))]


def _flat(rows: Rows, parts: Parts, target: SumTarget) -> tuple[Array, Array]:
    """What the network sees, as columns: all features, context, and each unit's share; a prior."""
    full = matrix(rows.placements, "full")
    share = np.zeros((len(parts), len(target.units)))
    np.add.at(share, (np.arange(len(parts))[:, None], parts.units), parts.base)
    share /= share.sum(axis=1, keepdims=True)
    x = [transform_features(full, "full"), parts.context, np.log(share + 1e-3)]
    prior = np.ones(len(parts)) if target.prior is None else full[:, _column(target.prior)]
    return np.concatenate(x, axis=1), target.to_learnt(prior) if target.prior else 0 * prior


def _column(name: str) -> int:
    return columns("full").index(name)


def _baseline(
    name: str,
    target: SumTarget,
    train: tuple[Array, Array],
    measured: Array,
    asked: tuple[Array, Array],
) -> Array:
    """A baseline's forecast; each side is (columns, prior), learnt is the residual over the prior.

    The constant is the exception: it is the median of the label itself.
    """
    model = BASELINES[name]()
    if name == "constant":
        guess: Array = model.fit(train[0], measured).predict(asked[0])
        return guess
    fitted = model.fit(train[0], target.to_learnt(measured) - train[1])
    return target.to_measured(fitted.predict(asked[0]) + asked[1])


def _guesses(rows: Rows, parts: Parts, target: SumTarget, folds: Folds) -> dict[str, Array]:
    flat = _flat(rows, parts, target)
    return {
        name: _baseline_out_of_fold(name, target, flat, rows.measured, folds) for name in BASELINES
    }


def _baseline_out_of_fold(
    name: str, target: SumTarget, flat: tuple[Array, Array], measured: Array, folds: Folds
) -> Array:
    out = np.empty(len(measured))
    x, prior = flat
    for fold in np.unique(folds):
        test = folds == fold
        train = ~test & np.isfinite(measured)
        out[test] = _baseline(
            name, target, (x[train], prior[train]), measured[train], (x[test], prior[test])
        )
    return out
