"""Interference benchmark: slowdowns in co-locations of any size, by network and baselines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from presage.features.tables.campaign import Campaign
from presage.models.calibration.conformal import cv_plus
from presage.models.calibration.margins import split_by_device
from presage.models.training.baselines import BASELINES, MEAN_BY_MEMBERS, MeanByMembers
from presage.models.training.fit import LEVELS, FitConfig
from presage.models.training.fit_interference import fit_interference, predict_log_slowdowns
from presage.models.training.splits import Folds
from presage.pipelines.benchmark.additive import Additive
from presage.pipelines.benchmark.benchmark_splits import EACH, make_folds, novelties
from presage.pipelines.benchmark.benchmark_task import Forecasts
from presage.pipelines.benchmark.colocated import Colocated, colocated
from presage.pipelines.benchmark.novel_rows import (
    calibrate_novel,
    columns_to_leave_out,
    is_any_new,
    of_colocated,
)
from presage.pipelines.benchmark.repeats import colocated_repeats
from presage.pipelines.evaluation import cross_validation as cv
from presage.system.arrays import Array, Mask, Names
from presage.system.text.progress import Progress

# Up to this number of models, families or devices, each is a separate fold.
FEW = 16
NOISE = 0.05  # measurement noise of log slowdown
# The network may memorize jobs with measured co-locations; for unseen jobs it must generalize.
ACQUAINTED = FitConfig(
    hidden=48, steps=1200, learning_rate=0.01, weight_decay=0.2, ensemble=3, seed=0, batch=192
)
OUT_OF_DOMAIN = FitConfig(
    hidden=32, steps=500, learning_rate=0.01, weight_decay=2.0, ensemble=2, seed=0, batch=192,
    jitter=1.0,
)  # fmt: skip


@dataclass(frozen=True)
class InterferenceTask:
    """Normalised speed of every member of a co-location: co-located over solo, 1 / slowdown.

    ``pair`` leaves out combinations of jobs: the same jobs on any device, in any number and with
    any victim, are left out together. For a left-out model or family, the networks are trained on
    no co-location with it.
    """

    acquainted: FitConfig = ACQUAINTED
    out_of_domain: FitConfig = OUT_OF_DOMAIN
    unit: str = "normalised speed"
    scale: float = 1.0
    splits: tuple[str, ...] = (
        "pair", "model", "family", "group", "device", "release", "source", "campaign",
    )  # fmt: skip
    needs_solo_runs: bool = True

    def rows(self, campaigns: Sequence[Campaign]) -> Colocated:
        """Return the co-locations of all campaigns."""
        return colocated(campaigns)

    def repeats(self, campaigns: Sequence[Campaign]) -> list[Array]:
        """Return the speeds of equal members of co-locations."""
        return colocated_repeats(campaigns)

    def cross_forecast(
        self, rows: Colocated, split: str, *, seed: int, progress: Progress
    ) -> Forecasts:
        """Forecast every victim with networks not trained on it, with other folds' margins."""
        folds = _folds(rows, split, seed)
        of_victim = folds[rows.is_victim]
        y, raw = self.left_out_quantiles(rows, split, seed=seed, progress=progress)
        quantiles = cv.calibrate_out_of_fold(y, raw, of_victim, _devices(rows))
        guesses = {name: np.empty(len(of_victim)) for name in _baseline_names()}
        for fold in np.unique(of_victim):
            requested, seen = of_victim == fold, ~rows.touched_by(folds == fold)[rows.is_victim]
            for name, guess in guesses.items():
                guess[requested] = _baseline(name, rows, seen, rows)[requested]
        return Forecasts(_speeds(quantiles), guesses)

    def left_out_quantiles(
        self, rows: Colocated, split: str, *, seed: int, progress: Progress
    ) -> tuple[Array, Array]:
        """Return the victims' target, and quantiles by networks not trained on their co-location.

        Both are in the space of calibration, (victims,) and (victims, levels); the quantiles are
        not calibrated.
        """
        folds = _folds(rows, split, seed)
        networks = _Networks(rows, folds, self._config(split, seed), progress)
        return _learnt(rows), networks.left_out()

    def forecast(
        self, train: Colocated, test: Colocated, *, seed: int, progress: Progress
    ) -> Forecasts:
        """Forecast test rows with the mean of all networks.

        Each network leaves out a fold of the training rows, which calibrates the intervals.
        """
        new = _new_victims(train, test)
        known = ~is_any_new(new, len(test.measured))
        y, left_out, means = _learnt(train), {}, []
        quantiles = np.empty((len(test.measured), len(LEVELS)))
        for column in columns_to_leave_out(new, len(test.measured), "pair"):
            networks = _Networks(
                train, _folds(train, column, seed), self._config(column, seed), progress
            )
            left_out[column], requested = networks.left_out(), networks.by_fold(test)
            if column != "pair":
                means.append(requested.mean(axis=0))
                continue
            for rows, by in split_by_device(_devices(test), _devices(train)):
                quantiles[rows] = cv_plus(
                    y[by], left_out[column][by], networks.fold_of_victim[by], requested[:, rows],
                    LEVELS,
                )  # fmt: skip
        if means:
            mean = np.mean(means, axis=0)
            novel = calibrate_novel(y, left_out, train.metadata, mean, test.metadata, new)
            quantiles[~known] = novel[~known]
        everything = np.ones(len(train.measured), dtype=bool)
        guesses = {name: _baseline(name, train, everything, test) for name in _baseline_names()}
        return Forecasts(_speeds(quantiles), guesses)

    def _config(self, split: str, seed: int) -> FitConfig:
        config = self.acquainted if split == "pair" else self.out_of_domain
        return replace(config, seed=seed)


def _new_victims(train: Colocated, test: Colocated) -> dict[str, Mask]:
    """Return the victims in whose co-location each column is new."""
    far = ~of_colocated(test).near(of_colocated(train))
    found = novelties(train.members, test.members, test.members["colocation"], far=far)
    return {column: new[test.is_victim] for column, new in found.items()}


class _Networks:
    """An ensemble for every fold, not trained on co-locations with members of the fold."""

    def __init__(
        self, rows: Colocated, folds: Folds, config: FitConfig, progress: Progress
    ) -> None:
        self._rows, self._ensemble = rows, config.ensemble
        numbers, positions = np.unique(folds, return_inverse=True)
        self.fold_of_victim = positions[rows.is_victim]
        known = rows.padded(rows.is_victim)
        seen = [
            rows.padded(~rows.touched_by(folds == fold)) * known
            for fold in numbers
            for _ in range(config.ensemble)
        ]
        log_slowdown = np.nan_to_num(-np.log(rows.members["speed"].to_numpy(np.float64)))
        self._stack = fit_interference(
            rows.padded(rows.columns)[None], rows.count, rows.padded(log_slowdown),
            np.array(seen), config, progress=progress,
        )  # fmt: skip

    def by_fold(self, rows: Colocated) -> Array:
        """Return predicted quantiles of victims, (folds, victims, levels)."""
        out = predict_log_slowdowns(self._stack, rows.padded(rows.columns)[None], rows.count)
        where, slot = rows.places
        victims = out[:, where, slot][:, rows.is_victim]
        by_fold = victims.reshape(-1, self._ensemble, *victims.shape[1:])
        return _relative(by_fold.mean(axis=1))

    def left_out(self) -> Array:
        """Return out-of-fold quantiles of the training rows, (victims, levels)."""
        return self.by_fold(self._rows)[self.fold_of_victim, np.arange(len(self.fold_of_victim))]


def _relative(log_slowdown: Array) -> Array:
    """Return the scale in which intervals are calibrated: errors relative to the slowdown.

    On a log scale, intervals from two members would be too narrow for the slowdowns of five. Below
    about 5 %, where measurements are noise, all errors count alike.
    """
    return np.asarray(np.arcsinh(log_slowdown / NOISE))


def _devices(rows: Colocated) -> Names:
    """Return the devices of the victims."""
    return rows.members["device"].to_numpy(object)[rows.is_victim]


def _learnt(rows: Colocated) -> Array:
    return _relative(-np.log(rows.measured))


def _folds(rows: Colocated, split: str, seed: int) -> Folds:
    """Return the fold of every line."""
    groups = list(rows.members[split])
    return make_folds(groups, seed=seed, each=split in EACH or len(set(groups)) <= FEW)


def _speeds(learnt: Array) -> Array:
    """Convert predicted quantiles of victims to normalised speed, lowest first."""
    return np.asarray(np.exp(-NOISE * np.sinh(learnt[:, ::-1])))


def _baseline_names() -> tuple[str, ...]:
    return (*BASELINES, MEAN_BY_MEMBERS, "additive")


def _baseline(name: str, train: Colocated, seen: Mask, test: Colocated) -> Array:
    """Return the victims' normalised speed in ``test``, from the allowed rows of ``train``."""
    if name == "additive":
        return Additive(train, seen).speeds(test)
    if name == MEAN_BY_MEMBERS:
        by_size = MeanByMembers().fit(_sizes(train)[seen], np.log(train.measured[seen]))
        return np.asarray(np.exp(by_size.predict(_sizes(test))))
    model = BASELINES[name]()
    x, requested = _flat(train)[seen], _flat(test)
    if name == "constant":
        guess: Array = model.fit(x, train.measured[seen]).predict(requested)
        return guess
    log_speed = np.log(train.measured[seen])
    learnt = model.fit(x, log_speed).predict(requested)
    # A linear model would extrapolate to a thousandfold speed.
    return np.asarray(np.exp(np.clip(learnt, log_speed.min(), log_speed.max())))


def _flat(rows: Colocated) -> Array:
    """Return the victim's columns and the sum of its co-runners' columns."""
    both: Array = np.concatenate([rows.columns, rows.sum_of_others(rows.columns)], axis=1)
    return both[rows.is_victim]


def _sizes(rows: Colocated) -> Array:
    """Return the number of members of each victim's co-location, (victims, 1)."""
    sizes = rows.count.sum(axis=1)[rows.members["colocation"].to_numpy()]
    return np.asarray(sizes[rows.is_victim, None])
