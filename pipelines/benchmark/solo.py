"""Jobs alone: the network and the baselines fitted on some rows, asked about others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from presage.features.columns.schema import matrix
from presage.features.job.job import JobFeatures
from presage.features.quantities.quantity import Quantity
from presage.features.tables.campaign import Campaign
from presage.models.networks.ensemble import combined_array
from presage.models.training.baselines import BASELINES
from presage.models.training.fit import (
    FitConfig,
    Progress,
    fit_scalar,
    inputs_of,
    quantiles_of,
    transform_features,
)
from presage.models.training.splits import Folds
from presage.pipelines.benchmark.benchmark_splits import (
    SPLITS,
    folds_of,
    novelty,
    own_fold,
    split_folds,
)
from presage.pipelines.benchmark.rows import Rows, solo_rows
from presage.pipelines.benchmark.task import Answers
from presage.pipelines.evaluation import cross_validation as cv
from presage.system.arrays import Array

# Thousands of rows: a larger network, for longer, than dvc.yaml's stages need for hundreds.
CONFIG = FitConfig(
    hidden=64, steps=2000, learning_rate=5e-3, weight_decay=0.1, ensemble=3, seed=0, batch=256,
    jitter=0.2,
)  # fmt: skip
# Training steps of a thousand models on one device have more to tell.
LONGER = replace(CONFIG, hidden=96, steps=3000)
# No sum of parts carries what is common: blurred, a network would say less of it.
SHARP = replace(CONFIG, jitter=0.0)


@dataclass(frozen=True)
class SoloTask:
    """A measurement of jobs alone.

    Attributes
    ----------
    wanted : callable
        Which jobs.
    """

    quantity: Quantity
    wanted: Callable[[JobFeatures], bool]
    unit: str
    scale: float = 1.0
    splits: tuple[str, ...] = SPLITS
    config: FitConfig = CONFIG
    needs_runs_alone: bool = False

    def rows(self, campaigns: Sequence[Campaign]) -> Rows:
        """Rows of all campaigns."""
        return solo_rows(campaigns, self.quantity, self.wanted)

    def cross_forecast(self, rows: Rows, split: str, *, seed: int, progress: Progress) -> Answers:
        """Every row by models that saw no like row; the folds' margins are those of the others.

        Rows that were not measured are forecast and not learnt from.
        """
        folds = split_folds(rows.who, split, seed=seed)
        features = matrix(rows.placements, "full")
        y = self.quantity.to_learnt(rows.measured, features)
        raw = own_fold(self._outputs(features, y, folds, features, seed, progress), folds)
        calibrated = cv.calibrate_out_of_fold(y, raw, folds, rows.devices)
        guesses = self._guesses(features, rows.measured, folds)
        return Answers(self.quantity.to_measured(calibrated, features), guesses)

    def guesses(self, rows: Rows, folds: Folds) -> dict[str, Array]:
        """Every row by baselines that saw no row of its fold."""
        return self._guesses(matrix(rows.placements, "full"), rows.measured, folds)

    def _guesses(self, features: Array, measured: Array, folds: Folds) -> dict[str, Array]:
        guesses = {name: np.empty(len(folds)) for name in BASELINES}
        for fold in np.unique(folds):
            seen, asked = (folds != fold) & np.isfinite(measured), folds == fold
            for name, guess in guesses.items():
                guess[asked] = self._baseline(name, features[seen], measured[seen], features[asked])
        return guesses

    def forecast(self, train: Rows, test: Rows, *, seed: int, progress: Progress) -> Answers:
        """Rows that are not trained on, by the mean of all members of the network.

        Each member leaves out a fold of the training rows, by which the intervals are calibrated
        (Barber et al., CV+, 2021).
        """
        train = train.take(np.isfinite(train.measured))
        folds = folds_of(list(train.who[novelty(train.who, test.who)]), seed=seed)
        features, asked = matrix(train.placements, "full"), matrix(test.placements, "full")
        y = self.quantity.to_learnt(train.measured, features)
        both = np.concatenate([features, asked])
        outputs = self._outputs(features, y, folds, both, seed, progress)
        calibrated = cv.calibrate_new(
            y, own_fold(outputs[:, : len(y)], folds), train.devices,
            outputs[:, len(y) :].mean(axis=0), test.devices,
        )  # fmt: skip
        guesses = {
            name: self._baseline(name, features, train.measured, asked) for name in BASELINES
        }
        return Answers(self.quantity.to_measured(calibrated, asked), guesses)

    def _outputs(
        self,
        features: Array,
        y: Array,
        folds: Folds,
        asked: Array,
        seed: int,
        progress: Progress,
    ) -> Array:
        """Of each fold's ensemble, which has not seen it: quantiles (folds, asked, levels)."""
        config = replace(self.config, seed=seed)
        numbers = np.unique(folds)
        ran = np.isfinite(y)
        seen = np.repeat([folds[ran] != fold for fold in numbers], config.ensemble, axis=0)
        stack = fit_scalar(
            transform_features(features[ran], "full"), y[ran], seen.astype(np.float64),
            inputs_of(self.quantity.inputs, "full"), config, progress=progress,
        )  # fmt: skip
        out = quantiles_of(stack, transform_features(asked, "full"))
        by_fold = out.reshape(len(numbers), config.ensemble, *out.shape[1:])
        return np.stack([combined_array(of_fold) for of_fold in by_fold])

    def _baseline(self, name: str, features: Array, measured: Array, asked: Array) -> Array:
        """A baseline's forecast, of what the network reads and by what it learns.

        The constant is the exception: it is the median of the label itself.
        """
        model = BASELINES[name]()
        if name == "constant":
            guess: Array = model.fit(features, measured).predict(asked)
            return guess
        read = inputs_of(self.quantity.inputs, "full")
        positions = [*read.columns, *read.identity]
        x, x_asked = (transform_features(f, "full")[:, positions] for f in (features, asked))
        learnt = model.fit(x, self.quantity.to_learnt(measured, features)).predict(x_asked)
        learnt = learnt.clip(-15.0, 15.0)  # as a release is: far out a line knows no bound
        return self.quantity.to_measured(learnt[:, None], asked)[:, 0]
