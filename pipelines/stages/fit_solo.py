"""One class of devices: its networks, their intervals, and what they said of rows not seen."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import torch

from presage.features.columns.schema import columns
from presage.features.quantities.quantity import Quantity
from presage.models.calibration.margins import ByLevel
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
from presage.models.training.splits import HELD_OUT_FOLD, Folds, folds_by_split
from presage.pipelines.evaluation import cross_validation as cv
from presage.pipelines.stages.feature_table import feature_matrix
from presage.pipelines.stages.fit_settings import Settings
from presage.system.arrays import Array
from presage.system.text.progress import training_progress

QUANTILES = [f"q{level:g}" for level in LEVELS]
IDENTITY_COLUMNS = [columns("full").index(name) for name in IDENTITY]
FORECAST_KEY = ["job_id", "family", "device_kind", "machine", "campaign"]


@dataclass(frozen=True)
class CrossValidation:
    """A stack of networks and what each said of the rows it had not seen."""

    stack: ScalarStack
    members: cv.Members
    learnt: Array  # (rows,)
    outputs: Array  # (members, rows, levels)
    folds: dict[str, Folds]
    weights: Array  # (members, rows), 0 where a member learnt nothing from a row

    def out_of_fold(self, split: str) -> Array:
        """Uncalibrated quantiles of shape (rows, levels)."""
        return cv.out_of_fold(self.outputs, self.members, split, self.folds[split])


def fit_device_class(
    solo: pd.DataFrame,
    quantity: Quantity,
    settings: Settings,
    start: TrainedNetworks[ScalarStack] | None,
) -> tuple[TrainedNetworks[ScalarStack], pd.DataFrame]:
    """Networks that have not seen the held-out fold, and out-of-fold forecasts of every row.

    Where rows are too few to calibrate by, intervals stay those of a stranger to ``start``.
    """
    folds, devices = folds_by_split(solo), solo["device_kind"].to_numpy(object)
    measured = solo[quantity.column].notna().to_numpy(bool)
    rows = int(measured.sum())
    before, known = (None, None) if start is None else (start.stack, start.margins)
    few = None if known is None else known.total_out_of_domain
    tables = []
    if cv.leaves_enough(folds, measured):
        # The published set knows no roofline: it learns the scale itself, and from nothing.
        unaided = replace(quantity, prior=None, inputs=tuple(columns("published")))
        config = replace(settings.of(rows, is_fine_tuning=False), ensemble=1)
        published = _cross_validate(solo, unaided, "published", config, folds)
        tables.append(_forecasts(solo, unaided, "published", published, few))
    folds = cv.with_devices(folds, devices, measured)
    config = settings.of(rows, is_fine_tuning=start is not None)
    full = _cross_validate(solo, quantity, "full", config, folds, before)
    tables.append(_forecasts(solo, quantity, "full", full, few))
    of_job, *unseen = (_by_domain(solo, full, split) for split in folds)
    margins = cv.release_margins(
        full.learnt, of_job, folds["job"], devices, device_identities(solo), unseen, known
    )
    shipped = full.members.ensemble("job", HELD_OUT_FOLD)
    taught = full.weights[shipped].any(axis=0)
    jobs = frozenset(map(job_digest, solo["job_id"][taught]))
    if start is not None:
        jobs |= start.jobs
    take_members(full.stack, torch.from_numpy(shipped))
    return TrainedNetworks(full.stack, margins, jobs), pd.concat(tables)


def device_identities(solo: pd.DataFrame) -> Array:
    """What networks see of which device each row ran on, (rows, ``IDENTITY``)."""
    return transform_features(feature_matrix(solo, "full"), "full")[:, IDENTITY_COLUMNS]


def _cross_validate(
    solo: pd.DataFrame,
    quantity: Quantity,
    feature_set: str,
    config: FitConfig,
    folds: dict[str, Folds],
    start: ScalarStack | None = None,
) -> CrossValidation:
    """Fit every fold of every split, side by side.

    A row without a measurement of the quantity is not learnt from, but has a forecast too.
    """
    members = cv.plan_members(config.ensemble, folds)
    learnt = quantity.to_learnt(
        solo[quantity.column].to_numpy(np.float64), feature_matrix(solo, "full")
    )
    x = transform_features(feature_matrix(solo, feature_set), feature_set)
    measured = np.isfinite(learnt)
    weights = cv.training_weights(members, folds) * measured * solo["weight"].to_numpy(np.float64)
    inputs = select_inputs(quantity.inputs, feature_set)
    with training_progress(f"{quantity.name}, {feature_set} features") as progress:
        stack = fit_scalar(
            x, np.where(measured, learnt, 0), weights, inputs, config,
            start=start, progress=progress,
        )  # fmt: skip
    return CrossValidation(stack, members, learnt, predict_quantiles(stack, x), folds, weights)


def _by_domain(solo: pd.DataFrame, fitted: CrossValidation, split: str) -> cv.ByDomain:
    """Out-of-fold quantiles of a split, and its strangers: all, where the device is unknown."""
    reason = f"reason.{split}"
    strange = (solo[reason] != "").to_numpy(bool) if reason in solo else np.ones(len(solo), bool)
    return cv.ByDomain(fitted.out_of_fold(split), strange)


def _forecasts(
    solo: pd.DataFrame,
    quantity: Quantity,
    feature_set: str,
    fitted: CrossValidation,
    few: ByLevel | None = None,
) -> pd.DataFrame:
    """Calibrated out-of-fold quantiles beside what was measured, in the quantity's unit."""
    parts = []
    raw = {split: _by_domain(solo, fitted, split) for split in cv.SPLITS}
    devices = solo["device_kind"].to_numpy(object)
    for split in cv.SPLITS:
        folds = fitted.folds[split]
        calibrated = cv.calibrate_by_domain(
            fitted.learnt, raw[split], folds, devices, raw["family"], fallback_margins=few
        )
        measured = quantity.to_measured(calibrated, feature_matrix(solo, "full"))
        part = solo[FORECAST_KEY].assign(split=split, features=feature_set, fold=folds)
        part["measured"] = solo[quantity.column].to_numpy(np.float64)
        part[QUANTILES] = measured
        part["in_domain"], part["reason"] = ~raw[split].out_of_domain, solo[f"reason.{split}"]
        parts.append(part)
    return pd.concat(parts)
