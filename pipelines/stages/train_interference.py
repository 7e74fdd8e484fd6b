"""DVC stage: features and solo forecasts -> the interference predictor."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
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
from presage.features.quantities.registry import INTERFERENCE, QUANTITIES
from presage.models.networks.predictors import (
    InterferencePredictor,
    MeasuredDeviceRouter,
    route_by_device_class,
)
from presage.models.networks.stacked import take_members
from presage.models.onnx_export.export import export
from presage.models.release.manifest import job_digest
from presage.models.training import solo_rows as alone
from presage.models.training.fine_tuning import TrainedNetworks, read_interference_networks
from presage.models.training.fit import FitConfig
from presage.models.training.fit_interference import (
    InterferenceStack,
    fit_interference,
    predict_log_slowdowns,
)
from presage.models.training.splits import HELD_OUT_FOLD, Folds, folds_by_split
from presage.pipelines.evaluation import cross_validation as cv
from presage.pipelines.pretraining.pretrained_networks import read_pretrained
from presage.pipelines.stages.feature_table import feature_matrix
from presage.pipelines.stages.fit_settings import Settings, read_settings
from presage.pipelines.stages.fit_solo import FORECAST_KEY, QUANTILES
from presage.pipelines.stages.stage import read_table, run_stage
from presage.pipelines.stages.train import (
    TrainedPredictor,
    make_torch_deterministic,
    max_out_of_domain_margins,
)
from presage.system.arrays import Array, Mask
from presage.system.text.progress import training_progress

COMPUTE_CAPABILITY = MEMBER_COLUMNS.index("compute capability")
REASONS = [f"reason.{split}" for split in cv.SPLITS]  # why a member is a stranger


@dataclass(frozen=True)
class Colocations:
    """Co-locations as padded arrays: C of them, of at most K members, G columns each.

    ``rows`` holds, at [colocation, member], the row of the victim table, -1 where there is none.
    """

    victims: pd.DataFrame
    members: Array  # (C, K, G)
    mask: Array  # (C, K)
    known: Array  # (C, K), 1 where there is a member and its slowdown was measured
    weight: Array  # (C, K), what a member counts in learning
    log_slowdown: Array  # (C, K), 0 where it was not
    rows: np.ndarray[Any, np.dtype[np.int64]]  # (C, K)

    @property
    def identity(self) -> Array:
        """What networks see of the device of each known victim, (victims, MEMBER_IDENTITY)."""
        found: Array = self.members[self.known > 0][:, MEMBER_IDENTITY]
        return found


def member_features(
    solo: pd.DataFrame, forecasts: Mapping[str, pd.DataFrame], split: str
) -> pd.DataFrame:
    """Each row of ``solo`` as a member, by out-of-fold solo medians, and who it is.

    Out of fold, because at serving time a member's solo profile is a forecast too; of the split
    that is to be judged, or an unseen family's profile would come from networks that know it.
    """
    medians = {}
    for predictor in SOLO_PROFILE:
        table = forecasts[predictor]
        out_of_fold = table[(table["split"] == split) & (table["features"] == "full")]
        measured = solo[QUANTITIES[predictor].column].notna().groupby(solo["device_class"])
        # Of a class of devices that it was never measured on, serving knows nothing either.
        known = measured.transform("any").to_numpy(bool)
        medians[predictor] = np.where(known, out_of_fold["q0.5"].to_numpy(), np.nan)
    values = member_matrix(feature_matrix(solo, "full"), medians)
    members = pd.DataFrame(values, columns=MEMBER_COLUMNS, index=solo.index)
    return members.join(solo[[*alone.SOLO_KEY, "share", *REASONS]])


def pad_colocations(interference: pd.DataFrame, members: pd.DataFrame) -> Colocations:
    """Pad co-locations to the largest.

    Raises
    ------
    TrainingError
        A member was never measured alone.
    """
    victims = interference.sort_values(["colocation", "member"]).reset_index(drop=True)
    positions = alone.find_solo_rows(members, victims)
    if (positions < 0).any():
        first = victims.iloc[int(np.argmax(positions < 0))]
        raise TrainingError(
            f"co-location member {tuple(first[alone.SOLO_KEY])} was never measured alone; "
            "run `presage profile` on that campaign again"
        )
    victims[REASONS] = members[REASONS].to_numpy()[positions]
    features = members[list(MEMBER_COLUMNS)].to_numpy(np.float64)[positions]
    groups = victims.groupby("colocation", sort=True).indices
    size = max(map(len, groups.values()))
    rows = np.full((len(groups), size), -1, dtype=np.int64)
    for c, of_group in enumerate(groups.values()):
        rows[c, : len(of_group)] = of_group
    mask = (rows >= 0).astype(np.float64)
    log_slowdown = np.log(victims["slowdown"].to_numpy(np.float64))
    padded = features[np.maximum(rows, 0)] * mask[:, :, None]
    known = mask * np.isfinite(log_slowdown)[np.maximum(rows, 0)]
    learnt = np.nan_to_num(log_slowdown)[np.maximum(rows, 0)] * mask
    weight = victims["weight"].to_numpy(np.float64)[np.maximum(rows, 0)] * mask
    return Colocations(victims, padded, mask, known, weight, learnt, rows)


def victim_folds(colocations: Colocations) -> dict[str, Folds]:
    """Fold of each victim of shape (C, K), by its job, its family, its device; -1 for padding."""
    victims = colocations.victims
    kinds = victims["device_kind"].to_numpy(object)
    by_row = cv.with_devices(folds_by_split(victims), kinds, is_measured(victims))
    real = colocations.mask > 0
    return {
        split: np.where(real, folds[np.maximum(colocations.rows, 0)], -1)
        for split, folds in by_row.items()
    }


def colocation_weights(members: cv.Members, folds: dict[str, Folds], weight: Array) -> Array:
    """Row weights (stack, C, K) of ``weight`` (C, K), 0 where nothing is known.

    A co-location is hidden when any member is of the fold.
    """
    seen = [
        (folds[split] != fold).all(axis=1, keepdims=True) * weight
        for split, fold in zip(members.split, members.fold, strict=True)
    ]
    return np.array(seen)


def fit_device_class(
    data: Mapping[str, Colocations],
    config: FitConfig,
    start: TrainedNetworks[InterferenceStack] | None,
) -> tuple[TrainedNetworks[InterferenceStack], pd.DataFrame]:
    """Networks of one class of devices, and out-of-fold forecasts of every victim, by both splits.

    ``data`` are the co-locations by split; but for their members' solo medians they are equal.
    """
    of_job, real = data["job"], data["job"].known > 0
    folds = victim_folds(of_job)
    plan = cv.plan_members(config.ensemble, folds)
    weights = colocation_weights(plan, folds, of_job.known * of_job.weight)
    # Nobody forecasts members alone with their device left out: family by family is near enough.
    inputs = np.stack([data.get(split, data["family"]).members for split in plan.split])
    before, known = (None, None) if start is None else (start.stack, start.margins)
    few = None if known is None else known.total_out_of_domain
    with training_progress(INTERFERENCE.name) as progress:
        stack = fit_interference(
            inputs, of_job.mask, of_job.log_slowdown, weights, config,
            start=before, progress=progress,
        )  # fmt: skip
    per_victim = predict_log_slowdowns(stack, inputs, of_job.mask)[
        :, real
    ]  # (stack, victims, levels)
    y, order = of_job.log_slowdown[real], of_job.rows[real]
    reasons = of_job.victims.loc[order, REASONS]
    everybody = pd.Series("on a device never seen", index=order)
    of_victim = {split: of_row[real] for split, of_row in folds.items()}
    raw = {
        split: cv.ByDomain(
            cv.out_of_fold(per_victim, plan, split, of_victim[split]),
            (reasons.get(f"reason.{split}", everybody) != "").to_numpy(bool),
        )
        for split in folds
    }
    devices = of_job.victims.loc[order, "device_kind"].to_numpy(object)
    parts = []
    for split in cv.SPLITS:
        calibrated = cv.calibrate_by_domain(
            y, raw[split], of_victim[split], devices, raw["family"], fallback_margins=few
        )
        part = of_job.victims.loc[order, ["colocation", "member", "members", *FORECAST_KEY]]
        part = part.assign(split=split, features="full", fold=of_victim[split], measured=np.exp(y))
        part[QUANTILES] = np.exp(np.maximum(calibrated, 0))
        part["in_domain"], part["reason"] = ~raw[split].out_of_domain, reasons[f"reason.{split}"]
        parts.append(part)
    unseen = [raw[split] for split in folds if split != "job"]
    margins = cv.release_margins(
        y, raw["job"], of_victim["job"], devices, of_job.identity, unseen, known
    )
    shipped = plan.ensemble("job", HELD_OUT_FOLD)
    taught = of_job.rows[weights[shipped].any(axis=0)]
    jobs = frozenset(map(job_digest, of_job.victims.loc[taught, "job_id"]))
    if start is not None:
        jobs |= start.jobs
    take_members(stack, torch.from_numpy(shipped))
    return TrainedNetworks(stack, margins, jobs), pd.concat(parts, ignore_index=True)


def train(
    solo: pd.DataFrame,
    interference: pd.DataFrame,
    forecasts: Mapping[str, pd.DataFrame],
    settings: Settings,
    starts: Mapping[str, TrainedNetworks[InterferenceStack]],
) -> TrainedPredictor:
    """Fit, judge and export the predictor, as :func:`presage.pipelines.stages.train.train` does."""
    make_torch_deterministic()
    members = {split: member_features(solo, forecasts, split) for split in cv.SPLITS}
    learnt, tables = {}, []
    predictors: dict[str, nn.Module] = {
        name: InterferencePredictor(one.stack, one.margins) for name, one in starts.items()
    }
    for name in DEVICE_CLASSES:
        rows, start = interference[interference["device_class"] == name], starts.get(name)
        if rows.empty or (
            start is None and not cv.leaves_enough(folds_by_split(rows), is_measured(rows))
        ):
            continue
        config = settings.of(int(is_measured(rows).sum()), is_fine_tuning=start is not None)
        data = {split: pad_colocations(rows, members[split]) for split in cv.SPLITS}
        learnt[name], table = fit_device_class(data, config, start)
        tables.append(table)
        here: nn.Module = InterferencePredictor(learnt[name].stack, learnt[name].margins)
        if name in starts:
            known = data["job"].identity
            here = MeasuredDeviceRouter(here, predictors[name], known, MEMBER_IDENTITY, raw=False)
        predictors[name] = here
    if not learnt:
        raise TrainingError(
            "no co-location ran to its end; measure some with `presage profile --budget ...`"
        )
    predictor = route_by_device_class(predictors, scale=True, column=COMPUTE_CAPABILITY)
    leading = ("colocations", "members")
    example = torch.zeros(2, 2, len(MEMBER_COLUMNS))
    onnx = export(predictor, {"members": (example, leading), "mask": (torch.ones(2, 2), leading)})
    return TrainedPredictor(
        pd.concat(tables, ignore_index=True),
        onnx,
        learnt,
        max_out_of_domain_margins(starts, learnt),
    )


def is_measured(interference: pd.DataFrame) -> Mask:
    """Rows of victims whose slowdown is known."""
    return interference["slowdown"].notna().to_numpy(bool)


def main(argv: list[str] | None = None) -> None:
    """Command line of the stage."""
    parser = argparse.ArgumentParser(description="DVC stage: features -> interference predictor")
    parser.add_argument("--features", type=Path, required=True, help="folder of featurize")
    parser.add_argument("--models", type=Path, required=True, help="folder of the solo predictors")
    parser.add_argument("--target", type=Path, required=True, help="folder to write")
    parser.add_argument("--pretrained", type=Path, help="folder of networks to go on from")
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
