"""A step over several devices: the network and the baselines on what a law of it leaves over.

The law (``models/networks/scale_out_law.py``) adds computing and synchronising up; all learn the
logarithm of how far a step was off it. Each fold has a law of its own, of rows that it may see.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from presage.features.tables.campaign import Campaign
from presage.models.networks.scale_out_law import fit_law
from presage.models.training.baselines import BASELINES
from presage.models.training.fit import FitConfig, Progress
from presage.models.training.fit_views import fit_views
from presage.models.training.splits import Folds
from presage.pipelines.benchmark.benchmark_splits import folds_of, novelty, own_fold, split_folds
from presage.pipelines.benchmark.compute_time import compute_seconds
from presage.pipelines.benchmark.scale_rows import ScaleRows, scale_rows
from presage.pipelines.benchmark.task import Answers
from presage.pipelines.evaluation import cross_validation as cv
from presage.system.arrays import Array

CONFIG = FitConfig(
    hidden=64, steps=600, learning_rate=5e-3, weight_decay=0.3, ensemble=1, seed=0
)  # fmt: skip


@dataclass(frozen=True)
class View:
    """Rows as each member of a stack sees them: features (members, rows, columns), law in log s."""

    x: Array
    law: Array


@dataclass(frozen=True)
class ScaleOutTask:
    """Seconds of a synchronised step, by where its devices are and the batch of each."""

    config: FitConfig = CONFIG
    unit: str = "seconds"
    scale: float = 1.0
    # The default first: where to put a job that ran elsewhere is what a scheduler asks.
    splits: tuple[str, ...] = (
        "placement", "count", "batch", "model", "family", "job", "device", "campaign",
    )  # fmt: skip
    needs_runs_alone: bool = False

    def rows(self, campaigns: Sequence[Campaign]) -> ScaleRows:
        """Training steps of all campaigns that scaled out."""
        return scale_rows(campaigns)

    def cross_forecast(
        self, rows: ScaleRows, split: str, *, seed: int, progress: Progress
    ) -> Answers:
        """Every row by models that saw no like row; the folds' margins are those of the others."""
        folds, y = split_folds(rows.who, split, seed=seed), np.log(rows.measured)
        seen = _seen(folds)
        view = _view(rows, seen)
        raw = own_fold(self._quantiles(view, y, seen, seed, progress), folds)
        guesses = {
            name: own_fold(
                np.stack([_guess(name, view, y, m, seen[m]) for m in range(len(seen))]), folds
            )
            for name in BASELINES
        }
        devices = rows.who["device"].to_numpy(object)
        return Answers(np.exp(cv.calibrate_out_of_fold(y, raw, folds, devices)), guesses)

    def forecast(
        self, train: ScaleRows, test: ScaleRows, *, seed: int, progress: Progress
    ) -> Answers:
        """Rows of ``test`` by the mean of members that each left out a fold (CV+)."""
        new = novelty(train.who, test.who)
        groups = train.who["placement" if new == "job" else new]
        folds = folds_of(list(groups), seed=seed)
        both, y = train.followed_by(test), np.log([*train.measured, *test.measured])
        # Baselines see all of the training rows, as one member more.
        everything = np.ones((1, len(train)), dtype=bool)
        seen = np.concatenate([_seen(folds), everything])
        seen = np.concatenate([seen, np.zeros((len(seen), len(test)), dtype=bool)], axis=1)
        view = _view(both, seen)
        members = View(view.x[:-1], view.law[:-1])
        raw = self._quantiles(members, y, seen[:-1], seed, progress)
        on, asked_on = (rows.who["device"].to_numpy(object) for rows in (train, test))
        calibrated = cv.calibrate_new(
            y[: len(train)], own_fold(raw[:, : len(train)], folds), on,
            raw[:, len(train) :].mean(axis=0), asked_on,
        )  # fmt: skip
        last = len(seen) - 1
        guesses = {n: _guess(n, view, y, last, seen[last])[len(train) :] for n in BASELINES}
        return Answers(np.exp(calibrated), guesses)

    def _quantiles(self, view: View, y: Array, seen: Array, seed: int, progress: Progress) -> Array:
        """Of log seconds, (members, rows, levels)."""
        off = fit_views(
            view.x, y - view.law, seen, replace(self.config, seed=seed), progress=progress
        )
        out: Array = off + view.law[:, :, None]
        return out


def _seen(folds: Folds) -> Array:
    """(members, rows): each member leaves out a fold."""
    return np.array([folds != fold for fold in np.unique(folds)])


def _view(rows: ScaleRows, seen: Array) -> View:
    compute_s = np.stack([compute_seconds(rows, of_member) for of_member in seen])
    gradients = rows.facts["gradient_bytes"].to_numpy(dtype=np.float64)
    law_s = fit_law(
        compute_s, gradients, rows.spreads, list(rows.who["kind"]), rows.measured,
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


def _guess(name: str, view: View, y: Array, member: int, seen: Array) -> Array:
    """A baseline's seconds of all rows, fitted on those that a member sees.

    The constant is the exception: it is the median of the steps themselves.
    """
    x, law = view.x[member], view.law[member]
    model = BASELINES[name]()
    if name == "constant":
        guess: Array = model.fit(x[seen], np.exp(y[seen])).predict(x)
        return guess
    out: Array = np.exp(model.fit(x[seen], (y - law)[seen]).predict(x) + law)
    return out
