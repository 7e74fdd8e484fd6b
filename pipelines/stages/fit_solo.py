"""Training of a solo predictor on one device class: networks, margins, out-of-fold forecasts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pandas as pd
import torch

from presage.features.columns.schema import columns
from presage.features.job.architecture_groups import architecture_group
from presage.features.job.framework_version import FRAMEWORK_RELEASE
from presage.features.quantities.quantity import Quantity
from presage.models.calibration.margins import DEVICE, RELEASE, ByLevel
from presage.models.networks.boosted_trees import BoostedTrees
from presage.models.networks.stacked import take_members
from presage.models.release.manifest import job_digest
from presage.models.training.device_effect import IDENTITY
from presage.models.training.fine_tuning import TrainedNetworks
from presage.models.training.fit import (
    LEVELS,
    FitConfig,
    ScalarStack,
    fit_scalar,
    predict_quantiles,
    select_inputs,
    transform_features,
)
from presage.models.training.fit_trees import fit_trees
from presage.models.training.loss_curves import LossCurves, observed_rows
from presage.models.training.splits import HELD_OUT_FOLD, LONG_ROWS, Folds, folds_by_split
from presage.pipelines.evaluation import cross_validation as cv
from presage.pipelines.evaluation.fit_members import fit_members
from presage.pipelines.stages.feature_table import feature_matrix
from presage.pipelines.stages.fit_settings import Settings
from presage.system.arrays import Array, Names
from presage.system.processes.spread import spread
from presage.system.text.progress import counted_progress

QUANTILES = [f"q{level:g}" for level in LEVELS]
IDENTITY_COLUMNS = [columns("full").index(name) for name in IDENTITY]
FORECAST_KEY = ["job_id", "family", "device_kind", "device_class", "machine", "campaign"]


@dataclass(frozen=True)
class CrossValidation:
    """Stack of networks trained on all folds, with its outputs.

    Attributes
    ----------
    stack : ScalarStack
    members : Members
        Split and fold of each member.
    target : ndarray of shape (rows,)
        Target that the networks learn.
    outputs : ndarray of shape (members, rows, levels)
        Those of the mean with trees, if there are trees.
    folds : mapping of str to ndarray of int, shape (rows,)
        Fold of each row, by split.
    weights : ndarray of shape (members, rows)
        Training weights, 0 for rows that are hidden from a member.
    curves : DataFrame
        Loss of the networks by step and split, without trees.
    trees : BoostedTrees or None
        Trees of the release, which were not trained on its held-out fold.
    """

    stack: ScalarStack
    members: cv.Members
    target: Array  # (rows,)
    outputs: Array  # (members, rows, levels)
    folds: dict[str, Folds]
    weights: Array  # (members, rows)
    curves: pd.DataFrame
    trees: BoostedTrees | None = None

    def out_of_fold(self, split: str) -> Array:
        """Return uncalibrated out-of-fold quantiles of shape (rows, levels)."""
        return cv.out_of_fold(self.outputs, self.members, split, self.folds[split])


def fit_device_class(
    solo: pd.DataFrame,
    quantity: Quantity,
    settings: Settings,
    start: TrainedNetworks[ScalarStack] | None,
) -> tuple[TrainedNetworks[ScalarStack], pd.DataFrame, pd.DataFrame]:
    """Train networks without the held-out fold; also return out-of-fold forecasts of every row.

    The last table has the loss curves of the networks with the full features.
    If there are too few rows for calibration, the margins are the out-of-domain margins of
    ``start``.
    """
    folds, devices = folds_by_split(solo), solo["device_kind"].to_numpy(object)
    measured = solo[quantity.column].notna().to_numpy(bool)
    rows = int(measured.sum())
    before, known = (None, None) if start is None else (start.stack, start.margins)
    fallback = None if known is None else known.largest
    tables = []
    if cv.leaves_enough(folds, measured):
        # The published set has no roofline: its networks learn the scale, and from scratch.
        without_prior = replace(quantity, prior=None, inputs=tuple(columns("published")))
        config = replace(settings.select(rows, is_fine_tuning=False), ensemble=1, trees=0.0)
        published = _cross_validate(solo, without_prior, "published", config, folds)
        tables.append(_forecasts(solo, without_prior, "published", published, fallback))
    groups = far_groups(solo)
    folds = cv.with_far_splits(folds, groups, measured)
    config = settings.select(rows, is_fine_tuning=start is not None)
    full = _cross_validate(solo, quantity, "full", config, folds, before)
    tables.append(_forecasts(solo, quantity, "full", full, fallback))
    raw = {split: _by_domain(solo, full, split) for split in folds}
    margins = cv.release_margins(
        full.target, raw["job"], folds["job"], devices, device_identities(solo),
        cv.left_out_groups(raw, groups), known,
    )  # fmt: skip
    released = full.members.ensemble("job", HELD_OUT_FOLD)
    is_training_row = full.weights[released].any(axis=0)
    jobs = frozenset(map(job_digest, solo["job_id"][is_training_row]))
    if start is not None:
        jobs |= start.jobs
    take_members(full.stack, torch.from_numpy(released))
    trained = TrainedNetworks(full.stack, margins, jobs, full.trees)
    return trained, pd.concat(tables), full.curves


def far_groups(solo: pd.DataFrame) -> dict[str, Names]:
    """Return the architecture group, device and framework release of each row, by far split."""
    names = {
        "group": solo["family"].map(architecture_group),
        DEVICE: solo["device_kind"],
        RELEASE: solo[f"full.{FRAMEWORK_RELEASE}"].map("{:g}".format),
    }
    return {name: values.to_numpy(object) for name, values in names.items()}


def device_identities(solo: pd.DataFrame) -> Array:
    """Return the transformed identity of each row's device, (rows, ``IDENTITY``)."""
    return transform_features(feature_matrix(solo, "full"), "full")[:, IDENTITY_COLUMNS]


def _cross_validate(
    solo: pd.DataFrame,
    quantity: Quantity,
    feature_set: str,
    config: FitConfig,
    folds: dict[str, Folds],
    start: ScalarStack | None = None,
) -> CrossValidation:
    """Train every fold of every split at once.

    A row without a measurement of the quantity is not used in training, but has a forecast.
    """
    members = cv.plan_members(config.ensemble, folds)
    target = quantity.to_learnt(
        solo[quantity.column].to_numpy(np.float64), feature_matrix(solo, "full")
    )
    features = feature_matrix(solo, feature_set)
    x = transform_features(features, feature_set)
    measured = np.isfinite(target)
    weights = cv.training_weights(members, folds) * measured * solo["weight"].to_numpy(np.float64)
    inputs = select_inputs(quantity.inputs, feature_set)
    at = observed_rows(len(solo))
    held_out = (1 - cv.training_weights(members, folds)) * measured
    curves = LossCurves(members.split, weights[:, at], held_out[:, at])
    columns_read = [*inputs.columns, *inputs.identity]
    fit = partial(fit_scalar, x, np.where(measured, target, 0), weights, inputs, config)
    title = f"{quantity.name}, {feature_set} features"
    with _fitting_trees(members, features, target, weights, columns_read, config) as trees:
        stack = fit_members(partial(fit, start=start), len(weights), len(solo), curves, title)
        outputs = predict_quantiles(stack, x)
        released = None if trees is None else _average_with_trees(outputs, members, trees, features)
    return CrossValidation(
        stack, members, target, outputs, folds, weights, curves.table(), released
    )


@contextmanager
def _fitting_trees(
    members: cv.Members,
    features: Array,
    target: Array,
    weights: Array,
    columns_read: Sequence[int],
    config: FitConfig,
) -> Iterator[Iterator[BoostedTrees] | None]:
    """Fit trees to the rows of the networks of every ensemble, meanwhile; None without trees."""
    if not config.trees:
        yield None
        return
    trees = spread(
        _fit_trees,
        [weights[members.ensemble(*ensemble)[0]] for ensemble in _ensembles(members)],
        shared=(features, target, columns_read, config),
        is_long=len(features) >= LONG_ROWS,
    )
    with closing(trees):
        yield trees


def _fit_trees(
    features: Array,
    target: Array,
    columns_read: Sequence[int],
    config: FitConfig,
    row_weights: Array,
) -> BoostedTrees:
    return fit_trees(
        features, target, row_weights, columns_read, weight=config.trees, seed=config.seed
    )


def _average_with_trees(
    outputs: Array, members: cv.Members, every: Iterator[BoostedTrees], features: Array
) -> BoostedTrees:
    """Move the outputs of every ensemble, in place, to the mean with its trees.

    Return the trees of the release.
    """
    ensembles, rows, released = _ensembles(members), torch.tensor(features).float(), None
    with counted_progress("boosted trees", len(ensembles)) as step:
        for (split, fold), trees in zip(ensembles, every, strict=True):
            of_fold = members.ensemble(split, fold)
            mean = torch.from_numpy(outputs[of_fold].mean(axis=0))
            outputs[of_fold] += (trees.move_medians(mean, rows) - mean).numpy()
            if (split, fold) == ("job", HELD_OUT_FOLD):
                released = trees
            step()
    assert released is not None  # ``plan_members`` always plans it
    return released


def _ensembles(members: cv.Members) -> list[tuple[str, int]]:
    return list(dict.fromkeys(zip(members.split, members.fold.tolist(), strict=True)))


def _by_domain(solo: pd.DataFrame, fitted: CrossValidation, split: str) -> cv.ByDomain:
    """Return out-of-fold quantiles of a split, and which rows are not near training.

    All rows are new if the split has no such column: those by device and release.
    """
    near = f"near.{split}"
    is_new = ~solo[near].to_numpy(bool) if near in solo else np.ones(len(solo), bool)
    return cv.ByDomain(fitted.out_of_fold(split), is_new)


def _forecasts(
    solo: pd.DataFrame,
    quantity: Quantity,
    feature_set: str,
    fitted: CrossValidation,
    fallback: ByLevel | None = None,
) -> pd.DataFrame:
    """Return calibrated out-of-fold quantiles and measurements, in the quantity's unit.

    ``fallback`` are the margins to use if there are few rows.
    """
    parts = []
    raw = {split: _by_domain(solo, fitted, split) for split in cv.SPLITS}
    devices = solo["device_kind"].to_numpy(object)
    for split in cv.SPLITS:
        folds = fitted.folds[split]
        calibrated = cv.calibrate_by_domain(
            fitted.target, raw[split], folds, devices, raw["family"], fallback_margins=fallback
        )
        measured = quantity.to_measured(calibrated, feature_matrix(solo, "full"))
        part = solo[FORECAST_KEY].assign(split=split, features=feature_set, fold=folds)
        part["measured"] = solo[quantity.column].to_numpy(np.float64)
        part[QUANTILES] = measured
        part["reason"] = solo[f"reason.{split}"]
        part["in_domain"] = part["reason"] == ""
        parts.append(part)
    return pd.concat(parts)
