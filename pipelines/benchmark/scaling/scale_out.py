"""Scale-out benchmark: steps over several devices, as residuals over an analytical law.

The law (``models/networks/scale_out_law.py``) adds compute and synchronisation time; all models
learn the logarithm of the ratio of a step to it. Each fold has its own law, fitted on its rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from presage.features.tables.campaign import Campaign
from presage.models.networks.scale_out_law import fit_step_times
from presage.models.training.baselines import BASELINES
from presage.models.training.fit import FitConfig
from presage.models.training.fit_views import fit_views
from presage.models.training.splits import Folds
from presage.pipelines.benchmark.benchmark_splits import (
    make_folds,
    novelty,
    own_fold,
    split_folds,
)
from presage.pipelines.benchmark.benchmark_task import Forecasts
from presage.pipelines.benchmark.compute_time import compute_seconds
from presage.pipelines.benchmark.scaling.scale_rows import ScaleRows, scale_rows
from presage.pipelines.evaluation import cross_validation as cv
from presage.system.arrays import Array
from presage.system.text.progress import Progress

CONFIG = FitConfig(
    hidden=64, steps=600, learning_rate=5e-3, weight_decay=0.3, ensemble=1, seed=0
)  # fmt: skip


@dataclass(frozen=True)
class View:
    """Inputs of each member of a stack: features (members, rows, columns), law in log seconds."""

    x: Array
    law: Array


@dataclass(frozen=True)
class ScaleOutTask:
    """Seconds of a synchronised step, by the placement of its devices and the batch of each."""

    config: FitConfig = CONFIG
    unit: str = "seconds"
    scale: float = 1.0
    # The default comes first: schedulers ask for placements of jobs that ran elsewhere.
    splits: tuple[str, ...] = (
        "placement", "count", "batch", "model", "family", "job", "device", "campaign",
    )  # fmt: skip
    needs_solo_runs: bool = False

    def rows(self, campaigns: Sequence[Campaign]) -> ScaleRows:
        """Return the scaled-out training steps of all campaigns."""
        return scale_rows(campaigns)

    def repeats(self, _campaigns: Sequence[Campaign]) -> list[Array]:
        """Return nothing: the source has no repeated steps."""
        return []

    def cross_forecast(
        self, rows: ScaleRows, split: str, *, seed: int, progress: Progress
    ) -> Forecasts:
        """Forecast every row with models not trained on similar rows, and other folds' margins."""
        folds, y = split_folds(rows.metadata, split, seed=seed), np.log(rows.measured)
        seen = _seen_rows(folds)
        view = _view(rows, seen)
        raw = own_fold(self._quantiles(view, y, seen, seed, progress), folds)
        guesses = {
            name: own_fold(
                np.stack([_fit_baseline(name, view, y, m, seen[m]) for m in range(len(seen))]),
                folds,
            )
            for name in BASELINES
        }
        devices = rows.metadata["device"].to_numpy(object)
        return Forecasts(np.exp(cv.calibrate_out_of_fold(y, raw, folds, devices)), guesses)

    def forecast(
        self, train: ScaleRows, test: ScaleRows, *, seed: int, progress: Progress
    ) -> Forecasts:
        """Forecast rows of ``test`` with the mean of members that each left out a fold (CV+)."""
        new = novelty(train.metadata, test.metadata)
        groups = train.metadata["placement" if new == "job" else new]
        folds = make_folds(list(groups), seed=seed)
        both, y = train.followed_by(test), np.log([*train.measured, *test.measured])
        # Baselines are trained on all training rows, as an additional member.
        everything = np.ones((1, len(train)), dtype=bool)
        seen = np.concatenate([_seen_rows(folds), everything])
        seen = np.concatenate([seen, np.zeros((len(seen), len(test)), dtype=bool)], axis=1)
        view = _view(both, seen)
        members = View(view.x[:-1], view.law[:-1])
        raw = self._quantiles(members, y, seen[:-1], seed, progress)
        on, requested_devices = (rows.metadata["device"].to_numpy(object) for rows in (train, test))
        calibrated = cv.calibrate_new(
            y[: len(train)], own_fold(raw[:, : len(train)], folds), on,
            raw[:, len(train) :].mean(axis=0), requested_devices,
        )  # fmt: skip
        last = len(seen) - 1
        guesses = {n: _fit_baseline(n, view, y, last, seen[last])[len(train) :] for n in BASELINES}
        return Forecasts(np.exp(calibrated), guesses)

    def _quantiles(self, view: View, y: Array, seen: Array, seed: int, progress: Progress) -> Array:
        """Return quantiles of log seconds, (members, rows, levels)."""
        off = fit_views(
            view.x, y - view.law, seen, replace(self.config, seed=seed), progress=progress
        )
        out: Array = off + view.law[:, :, None]
        return out


def _seen_rows(folds: Folds) -> Array:
    """Return a mask (members, rows): each member leaves out a fold."""
    return np.array([folds != fold for fold in np.unique(folds)])


def _view(rows: ScaleRows, seen: Array) -> View:
    compute_s = np.stack([compute_seconds(rows, of_member) for of_member in seen])
    gradients = rows.facts["gradient_bytes"].to_numpy(dtype=np.float64)
    law_s = fit_step_times(
        compute_s, gradients, rows.spreads, list(rows.metadata["kind"]), rows.measured,
        seen.astype(np.float64),
    )  # fmt: skip
    x = [_features(rows, compute, law) for compute, law in zip(compute_s, law_s, strict=True)]
    return View(np.stack(x), np.log(law_s))


def _features(rows: ScaleRows, compute_s: Array, law_s: Array) -> Array:
    facts = rows.facts
    where = np.array([(s.nodes, s.devices, s.widest, s.narrowest) for s in rows.spreads], float)
    nodes, devices, widest, narrowest = where.T
    scales = (
        compute_s, compute_s / facts["roofline_s"], law_s / compute_s, facts["batch_size"],
        facts["gradient_bytes"] + 1, facts["flops_per_s"], facts["bytes_per_s"], nodes, devices,
    )  # fmt: skip
    logarithms = [np.log(np.asarray(one)) for one in scales]
    return np.stack([*logarithms, widest, narrowest], axis=1)


def _fit_baseline(name: str, view: View, y: Array, member: int, seen: Array) -> Array:
    """Return a baseline's seconds of all rows, fitted on a member's training rows.

    The constant baseline is the median of the steps themselves.
    """
    x, law = view.x[member], view.law[member]
    model = BASELINES[name]()
    if name == "constant":
        guess: Array = model.fit(x[seen], np.exp(y[seen])).predict(x)
        return guess
    out: Array = np.exp(model.fit(x[seen], (y - law)[seen]).predict(x) + law)
    return out
