"""Co-locations of any size: the network and the baselines asked about slowdowns never measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from presage.features.tables.campaign import Campaign
from presage.models.calibration.conformal import cv_plus
from presage.models.calibration.margins import by_device
from presage.models.training.baselines import BASELINES
from presage.models.training.fit import LEVELS, FitConfig, Progress
from presage.models.training.fit_interference import fit_interference, log_slowdowns
from presage.models.training.splits import Folds
from presage.pipelines.benchmark.additive import Additive
from presage.pipelines.benchmark.benchmark_splits import folds_of, novelty
from presage.pipelines.benchmark.colocated import Colocated, colocated
from presage.pipelines.benchmark.task import Answers
from presage.pipelines.evaluation import cross_validation as cv
from presage.system.arrays import Array, Mask, Names

# So few models, families or devices are left out one by one.
FEW = 16
NOISE = 0.05  # of log slowdown
# Of jobs that were seen beside others, the network may know each by heart; of strangers it may not.
ACQUAINTED = FitConfig(
    hidden=48, steps=1200, learning_rate=0.01, weight_decay=0.2, ensemble=3, seed=0, batch=192
)
STRANGERS = FitConfig(
    hidden=32, steps=500, learning_rate=0.01, weight_decay=2.0, ensemble=2, seed=0, batch=192,
    jitter=1.0,
)  # fmt: skip


@dataclass(frozen=True)
class InterferenceTask:
    """Normalised speed of every member of a co-location: co-located over alone, 1 / slowdown.

    ``pair`` leaves out jobs in company: the same jobs on whichever device, however many of each,
    and both ways round, are left out together. Of a left-out model or family the networks saw no
    co-location at all, whoever the victim.
    """

    acquainted: FitConfig = ACQUAINTED
    strangers: FitConfig = STRANGERS
    unit: str = "normalised speed"
    scale: float = 1.0
    splits: tuple[str, ...] = ("pair", "model", "family", "device", "campaign")
    needs_runs_alone: bool = True

    def rows(self, campaigns: Sequence[Campaign]) -> Colocated:
        """Co-locations of all campaigns."""
        return colocated(campaigns)

    def cross_forecast(
        self, rows: Colocated, split: str, *, seed: int, progress: Progress
    ) -> Answers:
        """Every victim by networks that saw no like row; margins are of the other folds."""
        folds = _folds(rows, split, seed)
        networks = _Networks(rows, folds, self._config(split, seed), progress)
        of_victim = folds[rows.is_victim]
        quantiles = cv.calibrate_out_of_fold(
            _learnt(rows), networks.left_out(), of_victim, _devices(rows)
        )
        guesses = {name: np.empty(len(of_victim)) for name in (*BASELINES, "additive")}
        for fold in np.unique(of_victim):
            asked, seen = of_victim == fold, ~rows.touched_by(folds == fold)[rows.is_victim]
            for name, guess in guesses.items():
                guess[asked] = _baseline(name, rows, seen, rows)[asked]
        return Answers(_speeds(quantiles), guesses)

    def forecast(
        self, train: Colocated, test: Colocated, *, seed: int, progress: Progress
    ) -> Answers:
        """Rows that are not trained on, by the mean of all networks.

        Each leaves out a fold of the training rows, by which the intervals are calibrated.
        """
        split = novelty(train.members, test.members, test.members["colocation"], known="pair")
        networks = _Networks(train, _folds(train, split, seed), self._config(split, seed), progress)
        quantiles = np.empty((len(test.measured), len(LEVELS)))
        y, left_out, asked = _learnt(train), networks.left_out(), networks.by_fold(test)
        for rows, by in by_device(_devices(test), _devices(train)):
            quantiles[rows] = cv_plus(
                y[by], left_out[by], networks.fold_of_victim[by], asked[:, rows], LEVELS
            )
        everything = np.ones(len(train.measured), dtype=bool)
        guesses = {
            name: _baseline(name, train, everything, test) for name in (*BASELINES, "additive")
        }
        return Answers(_speeds(quantiles), guesses)

    def _config(self, split: str, seed: int) -> FitConfig:
        config = self.acquainted if split == "pair" else self.strangers
        return replace(config, seed=seed)


class _Networks:
    """An ensemble for every fold, which has not seen any co-location that touches it."""

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
        """Learnt quantiles of victims, (folds, victims, levels)."""
        out = log_slowdowns(self._stack, rows.padded(rows.columns)[None], rows.count)
        where, slot = rows.places
        victims = out[:, where, slot][:, rows.is_victim]
        by_fold = victims.reshape(-1, self._ensemble, *victims.shape[1:])
        return _relative(by_fold.mean(axis=1))

    def left_out(self) -> Array:
        """Of the rows trained on, (victims, levels), each by the networks that left it out."""
        return self.by_fold(self._rows)[self.fold_of_victim, np.arange(len(self.fold_of_victim))]


def _relative(log_slowdown: Array) -> Array:
    """What intervals are calibrated in: an error counts in proportion to a slowdown.

    Else what two members teach would be too narrow for the slowdowns of five. Below about 5 %,
    where measurements are noise (and slowdowns less than none), all errors count alike.
    """
    return np.asarray(np.arcsinh(log_slowdown / NOISE))


def _devices(rows: Colocated) -> Names:
    """Of the victims."""
    return rows.members["device"].to_numpy(object)[rows.is_victim]


def _learnt(rows: Colocated) -> Array:
    return _relative(-np.log(rows.measured))


def _folds(rows: Colocated, split: str, seed: int) -> Folds:
    """Fold of every line."""
    groups = list(rows.members[split])
    return folds_of(groups, seed=seed, each=len(set(groups)) <= FEW)


def _speeds(learnt: Array) -> Array:
    """The way back: learnt quantiles of victims -> of normalised speed, lowest first."""
    return np.asarray(np.exp(-NOISE * np.sinh(learnt[:, ::-1])))


def _baseline(name: str, train: Colocated, seen: Mask, test: Colocated) -> Array:
    """Normalised speed of the victims in ``test``, by those in ``train`` that may be seen."""
    if name == "additive":
        return Additive(train, seen).speeds(test)
    model = BASELINES[name]()
    x, asked = _flat(train)[seen], _flat(test)
    if name == "constant":
        guess: Array = model.fit(x, train.measured[seen]).predict(asked)
        return guess
    log_speed = np.log(train.measured[seen])
    learnt = model.fit(x, log_speed).predict(asked)
    # A straight line, far from what it saw, would promise a thousandfold speed.
    return np.asarray(np.exp(np.clip(learnt, log_speed.min(), log_speed.max())))


def _flat(rows: Colocated) -> Array:
    """The victim's columns beside the sum of its co-runners'."""
    both: Array = np.concatenate([rows.columns, rows.beside(rows.columns)], axis=1)
    return both[rows.is_victim]
