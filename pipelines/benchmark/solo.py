"""Solo benchmark: network and baselines fitted on some solo runs and scored on others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from presage.features.columns.schema import matrix
from presage.features.job.job_description import JobFeatures
from presage.features.quantities.quantity import Quantity
from presage.features.tables.campaign import Campaign
from presage.models.networks.ensemble import combine_member_arrays
from presage.models.training.baselines import BASELINES
from presage.models.training.fit import (
    FitConfig,
    fit_scalar,
    predict_quantiles,
    select_inputs,
    transform_features,
)
from presage.models.training.splits import Folds
from presage.pipelines.benchmark.benchmark_rows import Rows, solo_rows
from presage.pipelines.benchmark.benchmark_splits import (
    EACH_TO_CALIBRATE,
    SPLITS,
    make_folds,
    novelties,
    own_fold,
    split_folds,
)
from presage.pipelines.benchmark.benchmark_task import Forecasts
from presage.pipelines.benchmark.novel_rows import (
    calibrate_novel,
    columns_to_leave_out,
    is_any_new,
    of_solo,
)
from presage.pipelines.benchmark.repeats import solo_repeats
from presage.pipelines.evaluation import cross_validation as cv
from presage.system.arrays import Array
from presage.system.text.progress import Progress

# For thousands of rows: a larger network with more steps than dvc.yaml's stages use for hundreds.
CONFIG = FitConfig(
    hidden=64, steps=2000, learning_rate=5e-3, weight_decay=0.1, ensemble=3, seed=0, batch=256,
    jitter=0.2,
)  # fmt: skip
# The training steps of a thousand models on one device contain more information.
LONGER = replace(CONFIG, hidden=96, steps=3000)
# Without component factors, input jitter would blur the network's predictions.
SHARP = replace(CONFIG, jitter=0.0)


@dataclass(frozen=True)
class SoloTask:
    """A quantity measured in solo runs.

    Attributes
    ----------
    required : callable
        Whether a job belongs to the task.
    """

    quantity: Quantity
    required: Callable[[JobFeatures], bool]
    unit: str
    scale: float = 1.0
    splits: tuple[str, ...] = SPLITS
    config: FitConfig = CONFIG
    needs_solo_runs: bool = False

    def rows(self, campaigns: Sequence[Campaign]) -> Rows:
        """Return the rows of all campaigns."""
        return solo_rows(campaigns, self.quantity, self.required)

    def repeats(self, campaigns: Sequence[Campaign]) -> list[Array]:
        """Return the measurements of each solo run that was repeated."""
        return solo_repeats(campaigns, self.quantity)

    def cross_forecast(self, rows: Rows, split: str, *, seed: int, progress: Progress) -> Forecasts:
        """Forecast every row with models not trained on similar rows, and other folds' margins.

        Rows without a measurement are forecast, but not trained on.
        """
        folds = split_folds(rows.metadata, split, seed=seed)
        features = matrix(rows.placements, "full")
        y, raw = self.left_out_quantiles(rows, split, seed=seed, progress=progress)
        calibrated = cv.calibrate_out_of_fold(y, raw, folds, rows.devices)
        guesses = self._guesses(features, rows.measured, folds)
        return Forecasts(self.quantity.to_measured(calibrated, features), guesses)

    def left_out_quantiles(
        self, rows: Rows, split: str, *, seed: int, progress: Progress
    ) -> tuple[Array, Array]:
        """Return the target (rows,), and quantiles (rows, levels) by networks not trained on them.

        Both are in the space of training, and the quantiles are not calibrated.
        """
        folds = split_folds(rows.metadata, split, seed=seed)
        features = matrix(rows.placements, "full")
        y = self.quantity.to_learnt(rows.measured, features)
        return y, own_fold(self._outputs(features, y, folds, features, seed, progress), folds)

    def guesses(self, rows: Rows, folds: Folds) -> dict[str, Array]:
        """Return every row's forecast by baselines not trained on its fold."""
        return self._guesses(matrix(rows.placements, "full"), rows.measured, folds)

    def _guesses(self, features: Array, measured: Array, folds: Folds) -> dict[str, Array]:
        guesses = {name: np.empty(len(folds)) for name in BASELINES}
        for fold in np.unique(folds):
            seen, requested = (folds != fold) & np.isfinite(measured), folds == fold
            for name, guess in guesses.items():
                guess[requested] = self._baseline(
                    name, features[seen], measured[seen], features[requested]
                )
        return guesses

    def forecast(self, train: Rows, test: Rows, *, seed: int, progress: Progress) -> Forecasts:
        """Forecast test rows with the mean of all members of the network.

        Each member leaves out a fold of the training rows, which calibrates the intervals
        (Barber et al., CV+, 2021): a fold of jobs, and for test rows on a new device, framework
        release and so on, a fold of those.
        """
        train = train.take(np.isfinite(train.measured))
        features, requested = matrix(train.placements, "full"), matrix(test.placements, "full")
        y = self.quantity.to_learnt(train.measured, features)
        both = np.concatenate([features, requested])
        far = ~of_solo(test).near(of_solo(train))
        new = novelties(train.metadata, test.metadata, far=far)
        left_out, means = {}, []
        for column in columns_to_leave_out(new, len(test), "job"):
            folds = make_folds(
                list(train.metadata[column]), seed=seed, each=column in EACH_TO_CALIBRATE
            )
            outputs = self._outputs(features, y, folds, both, seed, progress)
            left_out[column] = own_fold(outputs[:, : len(y)], folds)
            means.append(outputs[:, len(y) :].mean(axis=0))
        mean = np.mean(means, axis=0)
        calibrated = calibrate_novel(y, left_out, train.metadata, mean, test.metadata, new)
        known = ~is_any_new(new, len(test))
        if known.any():
            calibrated[known] = cv.calibrate_new(
                y, left_out["job"], train.devices, mean[known], test.devices[known]
            )
        guesses = {
            name: self._baseline(name, features, train.measured, requested) for name in BASELINES
        }
        return Forecasts(self.quantity.to_measured(calibrated, requested), guesses)

    def _outputs(
        self,
        features: Array,
        y: Array,
        folds: Folds,
        requested: Array,
        seed: int,
        progress: Progress,
    ) -> Array:
        """Return quantiles (folds, rows, levels) of the ensembles not trained on each fold."""
        config = replace(self.config, seed=seed)
        numbers = np.unique(folds)
        ran = np.isfinite(y)
        seen = np.repeat([folds[ran] != fold for fold in numbers], config.ensemble, axis=0)
        stack = fit_scalar(
            transform_features(features[ran], "full"), y[ran], seen.astype(np.float64),
            select_inputs(self.quantity.inputs, "full"), config, progress=progress,
        )  # fmt: skip
        out = predict_quantiles(stack, transform_features(requested, "full"))
        by_fold = out.reshape(len(numbers), config.ensemble, *out.shape[1:])
        return np.stack([combine_member_arrays(of_fold) for of_fold in by_fold])

    def _baseline(self, name: str, features: Array, measured: Array, requested: Array) -> Array:
        """Return a baseline's forecast, with the network's inputs and target.

        The constant baseline is the median of the label itself.
        """
        model = BASELINES[name]()
        if name == "constant":
            guess: Array = model.fit(features, measured).predict(requested)
            return guess
        read = select_inputs(self.quantity.inputs, "full")
        positions = [*read.columns, *read.identity]
        x, x_requested = (
            transform_features(f, "full")[:, positions] for f in (features, requested)
        )
        learnt = model.fit(x, self.quantity.to_learnt(measured, features)).predict(x_requested)
        # Clip as in a release: linear models extrapolate without bound.
        learnt = learnt.clip(-15.0, 15.0)
        return self.quantity.to_measured(learnt[:, None], requested)[:, 0]
