"""DVC stage: features and solo forecasts -> the interference predictor."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn

from presage.errors import TrainingError
from presage.features.colocation_member import (
    MEMBER_COLUMNS,
    MEMBER_IDENTITY,
    SOLO_PROFILE,
    member_matrix,
)
from presage.features.device.device_class import DEVICE_CLASSES
from presage.features.job.architecture_groups import architecture_group
from presage.features.quantities.quantity_registry import INTERFERENCE, QUANTITIES
from presage.models.calibration.margins import DEVICE, ByLevel
from presage.models.networks.predictors import (
    InterferencePredictor,
    MeasuredDeviceRouter,
    route_by_device_class,
)
from presage.models.networks.stacked import take_members
from presage.models.onnx_export.export import export
from presage.models.release.manifest import job_digest
from presage.models.training.fine_tuning import TrainedNetworks, read_interference_networks
from presage.models.training.fit import FitConfig
from presage.models.training.fit_interference import (
    InterferenceStack,
    fit_interference,
    predict_log_slowdowns,
)
from presage.models.training.loss_curves import LossCurves, observed_rows
from presage.models.training.solo_rows import SOLO_KEY, find_solo_rows
from presage.models.training.splits import HELD_OUT_FOLD, Folds, folds_by_split
from presage.models.training.torch_settings import make_torch_deterministic
from presage.pipelines.evaluation import cross_validation as cv
from presage.pipelines.evaluation.fit_members import fit_members
from presage.pipelines.pretraining.pretrained_networks import read_pretrained
from presage.pipelines.stages.feature_table import feature_matrix
from presage.pipelines.stages.fit_settings import Settings, read_settings
from presage.pipelines.stages.fit_solo import FORECAST_KEY, QUANTILES
from presage.pipelines.stages.stage import read_table, run_stage
from presage.pipelines.stages.train import (
    TrainedPredictor,
    max_novelty_margins,
)
from presage.system.arrays import Array, Mask, Names

COMPUTE_CAPABILITY = MEMBER_COLUMNS.index("compute capability")
REASONS = [f"reason.{split}" for split in cv.SPLITS]  # why a member is out of domain
NEAR = [f"near.{split}" for split in (*cv.SPLITS, "group")]  # whether it is near training


@dataclass(frozen=True)
class Colocations:
    """Co-locations as padded arrays: C of them, at most K members, G columns each."""

    victims: pd.DataFrame
    members: Array  # (C, K, G)
    mask: Array  # (C, K), 1 for members, 0 for padding
    known: Array  # (C, K), 1 for members with a measured slowdown
    weight: Array  # (C, K), training weight
    log_slowdown: Array  # (C, K), 0 if it was not measured
    rows: np.ndarray[Any, np.dtype[np.int64]]  # (C, K), position in victims, -1 for padding

    @property
    def identity(self) -> Array:
        """Transformed device identity of each known victim, (victims, MEMBER_IDENTITY)."""
        identity: Array = self.members[self.known > 0][:, MEMBER_IDENTITY]
        return identity


def member_features(
    solo: pd.DataFrame, forecasts: Mapping[str, pd.DataFrame], split: str
) -> pd.DataFrame:
    """Return each row of ``solo`` as a member: keys, and features with out-of-fold solo medians.

    Medians are out-of-fold, because in serving they are forecasts too, and of the given ``split``,
    because otherwise the medians of an unseen family would come from networks trained on it.
    """
    medians = {}
    for predictor in SOLO_PROFILE:
        table = forecasts[predictor]
        out_of_fold = table[(table["split"] == split) & (table["features"] == "full")]
        measured = solo[QUANTITIES[predictor].column].notna().groupby(solo["device_class"])
        # Serving has no forecast on a device class without measurements either.
        known = measured.transform("any").to_numpy(bool)
        medians[predictor] = np.where(known, out_of_fold["q0.5"].to_numpy(), np.nan)
    values = member_matrix(feature_matrix(solo, "full"), medians)
    members = pd.DataFrame(values, columns=MEMBER_COLUMNS, index=solo.index)
    return members.join(solo[[*SOLO_KEY, "share", *REASONS, *NEAR]])


def pad_colocations(interference: pd.DataFrame, members: pd.DataFrame) -> Colocations:
    """Pad co-locations to the size of the largest.

    Raises
    ------
    TrainingError
        A member has no solo measurement.
    """
    victims = interference.sort_values(["colocation", "member"]).reset_index(drop=True)
    positions = find_solo_rows(members, victims)
    if (positions < 0).any():
        first = victims.iloc[int(np.argmax(positions < 0))]
        raise TrainingError(
            f"co-location member {tuple(first[SOLO_KEY])} has no solo measurement; "
            "run `presage profile` on that campaign again"
        )
    victims[REASONS] = members[REASONS].to_numpy()[positions]
    # What is new in one member is new in the co-location, as in serving.
    near = pd.DataFrame(members[NEAR].to_numpy(bool)[positions], columns=NEAR)
    victims[NEAR] = near.groupby(victims["colocation"]).transform("all")
    features = members[list(MEMBER_COLUMNS)].to_numpy(np.float64)[positions]
    groups = victims.groupby("colocation", sort=True).indices
    size = max(map(len, groups.values()))
    rows = np.full((len(groups), size), -1, dtype=np.int64)
    for c, group in enumerate(groups.values()):
        rows[c, : len(group)] = group
    mask = (rows >= 0).astype(np.float64)
    log_slowdown = np.log(victims["slowdown"].to_numpy(np.float64))
    padded = features[np.maximum(rows, 0)] * mask[:, :, None]
    known = mask * np.isfinite(log_slowdown)[np.maximum(rows, 0)]
    target = np.nan_to_num(log_slowdown)[np.maximum(rows, 0)] * mask
    weight = victims["weight"].to_numpy(np.float64)[np.maximum(rows, 0)] * mask
    return Colocations(victims, padded, mask, known, weight, target, rows)


def victim_folds(colocations: Colocations) -> dict[str, Folds]:
    """Return the fold of each victim, (C, K), by split; -1 for padding."""
    victims = colocations.victims
    by_row = cv.with_far_splits(folds_by_split(victims), far_groups(victims), is_measured(victims))
    is_member = colocations.mask > 0
    return {
        split: np.where(is_member, folds[np.maximum(colocations.rows, 0)], -1)
        for split, folds in by_row.items()
    }


def far_groups(victims: pd.DataFrame) -> dict[str, Names]:
    """Return the architecture group and the device of each victim, by far split."""
    return {
        "group": victims["family"].map(architecture_group).to_numpy(object),
        DEVICE: victims["device_kind"].to_numpy(object),
    }


def colocation_weights(members: cv.Members, folds: dict[str, Folds], weight: Array) -> Array:
    """Return the training weights (stack, C, K), from weights (C, K) that are 0 if unmeasured.

    A co-location is hidden from a fold that has any of its members.
    """
    weights = [
        (folds[split] != fold).all(axis=1, keepdims=True) * weight
        for split, fold in zip(members.split, members.fold, strict=True)
    ]
    return np.array(weights)


def fit_device_class(
    data: Mapping[str, Colocations],
    config: FitConfig,
    start: TrainedNetworks[InterferenceStack] | None,
) -> tuple[TrainedNetworks[InterferenceStack], pd.DataFrame, pd.DataFrame]:
    """Train networks of one device class; also return out-of-fold forecasts of every victim.

    The last table has the loss curves of the networks.

    Parameters
    ----------
    data : mapping of str to Colocations
        Co-locations by split, which differ only in the solo medians of their members.
    config : FitConfig
    start : TrainedNetworks, optional
        Networks to fine-tune.
    """
    colocations = data["job"]
    is_victim = colocations.known > 0
    folds = victim_folds(colocations)
    plan = cv.plan_members(config.ensemble, folds)
    weights = colocation_weights(plan, folds, colocations.known * colocations.weight)
    # There are no solo medians without the device's fold; those of the family split are similar.
    inputs = np.stack([data[split].members for split in cv.SPLITS])
    of_network = np.array([split != "job" for split in plan.split], dtype=np.int64)
    before, known = (None, None) if start is None else (start.stack, start.margins)
    curves = _loss_curves(colocations, plan, folds, weights)
    fit = partial(
        fit_interference, inputs, colocations.mask, colocations.log_slowdown, weights, config,
        of_network=of_network, start=before,
    )  # fmt: skip
    stack = fit_members(fit, len(weights), weights.shape[1], curves, INTERFERENCE.name)
    per_victim = predict_log_slowdowns(stack, inputs, colocations.mask, of_network=of_network)[
        :, is_victim
    ]
    victim_fold = {split: fold[is_victim] for split, fold in folds.items()}
    raw = _by_domain(colocations, per_victim, plan, victim_fold)
    forecasts = _forecasts(colocations, raw, victim_fold, None if known is None else known.largest)
    order = colocations.rows[is_victim]
    margins = cv.release_margins(
        colocations.log_slowdown[is_victim],
        raw["job"],
        victim_fold["job"],
        colocations.victims.loc[order, "device_kind"].to_numpy(object),
        colocations.identity,
        cv.left_out_groups(raw, far_groups(colocations.victims.loc[order])),
        known,
    )
    released = plan.ensemble("job", HELD_OUT_FOLD)
    training_rows = colocations.rows[weights[released].any(axis=0)]
    jobs = frozenset(map(job_digest, colocations.victims.loc[training_rows, "job_id"]))
    if start is not None:
        jobs |= start.jobs
    take_members(stack, torch.from_numpy(released))
    return TrainedNetworks(stack, margins, jobs), forecasts, curves.table()


def _loss_curves(
    colocations: Colocations, plan: cv.Members, folds: Mapping[str, Folds], weights: Array
) -> LossCurves:
    """Return empty curves of known victims; ``weights`` are those of training (stack, C, K)."""
    at = observed_rows(len(colocations.known))
    held_out = [
        (folds[split][at] == fold) * colocations.known[at]
        for split, fold in zip(plan.split, plan.fold, strict=True)
    ]
    training, validation = (
        each.reshape(len(weights), -1) for each in (weights[:, at], np.array(held_out))
    )
    return LossCurves(plan.split, training, validation)


def _by_domain(
    colocations: Colocations, per_victim: Array, plan: cv.Members, folds: Mapping[str, Folds]
) -> dict[str, cv.ByDomain]:
    """Return out-of-fold quantiles by split, and which victims are not near training.

    ``per_victim`` are the quantiles (stack, victims, levels) of all networks. All victims are new
    in the split by device.
    """
    victims = colocations.victims.loc[colocations.rows[colocations.known > 0]]
    never = np.zeros(len(victims), dtype=bool)
    return {
        split: cv.ByDomain(
            cv.out_of_fold(per_victim, plan, split, folds[split]),
            ~np.asarray(victims.get(f"near.{split}", never), dtype=bool),
        )
        for split in folds
    }


def _forecasts(
    colocations: Colocations,
    raw: Mapping[str, cv.ByDomain],
    folds: Mapping[str, Folds],
    fallback: ByLevel | None,
) -> pd.DataFrame:
    """Return calibrated out-of-fold slowdowns and measurements of every victim, by split.

    ``fallback`` are the margins to use if there are few rows.
    """
    is_victim = colocations.known > 0
    y, order = colocations.log_slowdown[is_victim], colocations.rows[is_victim]
    victims = colocations.victims.loc[order]
    devices = victims["device_kind"].to_numpy(object)
    parts = []
    for split in cv.SPLITS:
        calibrated = cv.calibrate_by_domain(
            y, raw[split], folds[split], devices, raw["family"], fallback_margins=fallback
        )
        part = victims[["colocation", "member", "members", *FORECAST_KEY]]
        part = part.assign(split=split, features="full", fold=folds[split], measured=np.exp(y))
        part[QUANTILES] = np.exp(np.maximum(calibrated, 0))
        part["reason"] = victims[f"reason.{split}"]
        part["in_domain"] = part["reason"] == ""
        parts.append(part)
    return pd.concat(parts, ignore_index=True)


def train(
    solo: pd.DataFrame,
    interference: pd.DataFrame,
    forecasts: Mapping[str, pd.DataFrame],
    settings: Settings,
    starts: Mapping[str, TrainedNetworks[InterferenceStack]],
) -> TrainedPredictor:
    """Train, cross-validate and export the interference predictor.

    It is the counterpart of :func:`presage.pipelines.stages.train.train`; ``forecasts`` are the
    out-of-fold forecasts of the solo predictors.

    Raises
    ------
    TrainingError
        Too few co-locations have a measured slowdown.
    """
    make_torch_deterministic()
    members = {split: member_features(solo, forecasts, split) for split in cv.SPLITS}
    trained_networks, tables, curves = {}, [], []
    predictors: dict[str, nn.Module] = {
        name: InterferencePredictor(start.stack, start.margins) for name, start in starts.items()
    }
    for name in DEVICE_CLASSES:
        rows, start = interference[interference["device_class"] == name], starts.get(name)
        if not can_train(rows, start):
            continue
        config = settings.select(int(is_measured(rows).sum()), is_fine_tuning=start is not None)
        data = {split: pad_colocations(rows, members[split]) for split in cv.SPLITS}
        trained_networks[name], table, curve = fit_device_class(data, config, start)
        tables.append(table)
        curves.append(curve.assign(device_class=name))
        trained: nn.Module = InterferencePredictor(
            trained_networks[name].stack, trained_networks[name].margins
        )
        if name in starts:
            known = data["job"].identity
            trained = MeasuredDeviceRouter(
                trained, predictors[name], known, MEMBER_IDENTITY, raw=False
            )
        predictors[name] = trained
    if not trained_networks:
        raise TrainingError(
            "no co-location was measured completely; measure more with "
            "`presage profile --budget ...`"
        )
    margins = max_novelty_margins(starts, trained_networks)
    return TrainedPredictor(
        pd.concat(tables, ignore_index=True), _export(predictors), trained_networks, margins,
        pd.concat(curves),
    )  # fmt: skip


def can_train(rows: pd.DataFrame, start: TrainedNetworks[InterferenceStack] | None) -> bool:
    """Return whether the rows of a device class suffice; to fine-tune, one row does."""
    if rows.empty:
        return False
    return start is not None or cv.leaves_enough(folds_by_split(rows), is_measured(rows))


def _export(predictors: Mapping[str, nn.Module]) -> bytes:
    """Return the ONNX bytes of the predictors of all device classes."""
    predictor = route_by_device_class(predictors, scale=True, column=COMPUTE_CAPABILITY)
    leading = ("colocations", "members")
    example = torch.zeros(2, 2, len(MEMBER_COLUMNS))
    return export(predictor, {"members": (example, leading), "mask": (torch.ones(2, 2), leading)})


def is_measured(interference: pd.DataFrame) -> Mask:
    """Return whether the slowdown of each victim was measured."""
    return interference["slowdown"].notna().to_numpy(bool)


def main(argv: list[str] | None = None) -> None:
    """Run the stage from the command line."""
    parser = argparse.ArgumentParser(description="DVC stage: features -> interference predictor")
    parser.add_argument("--features", type=Path, required=True, help="folder of featurize")
    parser.add_argument("--models", type=Path, required=True, help="folder of the solo predictors")
    parser.add_argument("--target", type=Path, required=True, help="folder to write")
    parser.add_argument("--pretrained", type=Path, help="folder of networks to fine-tune")
    args = parser.parse_args(argv)
    settings = read_settings(INTERFERENCE.name)
    solo = read_table(args.features / "solo.parquet")
    interference = read_table(args.features / "interference.parquet")
    forecasts = {
        name: read_table(args.models / name / "forecasts.parquet") for name in SOLO_PROFILE
    }
    pretrained = read_pretrained(args.pretrained)
    files = {} if pretrained is None else pretrained.networks(INTERFERENCE.name)
    starts = {name: read_interference_networks(path) for name, path in files.items()}
    trained = train(solo, interference, forecasts, settings, starts)
    trained.write(args.target)


if __name__ == "__main__":
    run_stage(main)
