"""DVC stage: features and solo forecasts -> the interference predictor."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from presage.features.errors import TrainingError
from presage.features.schema import columns
from presage.models import alone
from presage.models.conformal import Array
from presage.models.fit import transform_features
from presage.models.fit_interference import InterferenceConfig, fit_interference
from presage.models.release import SOLO_COLUMNS
from presage.models.splits import HELD_OUT_FOLD, Folds, family_folds, job_folds
from presage.pipelines import cross_validation as cv
from presage.pipelines.feature_table import feature_matrix
from presage.pipelines.progress import training_progress
from presage.pipelines.stage import read_params, read_table, run_stage
from presage.pipelines.train import QUANTILES, WHO, Trained

# Which predictor's median fills which of SOLO_COLUMNS.
SOLO_PREDICTORS = ("compute_utilization", "memory", "step_time")
REASONS = [f"reason.{split}" for split in cv.SPLITS]  # why a member is a stranger


@dataclass(frozen=True)
class Colocations:
    """Co-locations as padded arrays: C of them, of at most K members, G columns each.

    ``rows`` holds, at [colocation, member], the row of the victim table, -1 where there is none.
    """

    victims: pd.DataFrame
    members: Array  # (C, K, G), raw units
    mask: Array  # (C, K)
    known: Array  # (C, K), 1 where there is a member and its slowdown was measured
    log_slowdown: Array  # (C, K), 0 where it was not
    rows: np.ndarray[Any, np.dtype[np.int64]]  # (C, K)


def member_features(
    solo: pd.DataFrame, forecasts: Mapping[str, pd.DataFrame], split: str
) -> pd.DataFrame:
    """Features and out-of-fold solo medians of each row of ``solo``, and who it is.

    Out of fold, because at serving time a member's solo profile is a forecast too; of the split
    that is to be judged, or an unseen family's profile would come from networks that know it.
    """
    values = pd.DataFrame(
        feature_matrix(solo, "full")[:, : len(columns("common"))], index=solo.index
    )
    for column, predictor in zip(SOLO_COLUMNS, SOLO_PREDICTORS, strict=True):
        table = forecasts[predictor]
        out_of_fold = table[(table["split"] == split) & (table["features"] == "full")]
        values[column] = out_of_fold["q0.5"].to_numpy()
    return values.join(solo[[*alone.WHO, "share", *REASONS]])


def assemble(interference: pd.DataFrame, members: pd.DataFrame) -> Colocations:
    """Pad co-locations to the largest.

    Raises
    ------
    TrainingError
        There is none; or a member was never measured alone.
    """
    if interference.empty:
        raise TrainingError(
            "no co-location ran to its end; measure some with `presage profile --budget ...`"
        )
    victims = interference.sort_values(["colocation", "member"]).reset_index(drop=True)
    positions = alone.positions_alone(members, victims)
    if (positions < 0).any():
        first = victims.iloc[int(np.argmax(positions < 0))]
        raise TrainingError(
            f"co-location member {tuple(first[alone.WHO])} was never measured alone; "
            "run `presage profile` on that campaign again"
        )
    victims[REASONS] = members[REASONS].to_numpy()[positions]
    values = members.drop(columns=[*alone.WHO, "share", *REASONS]).to_numpy(dtype=np.float64)
    features = values[positions]
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
    return Colocations(victims, padded, mask, known, learnt, rows)


def victim_folds(colocations: Colocations) -> dict[str, Folds]:
    """Fold of each victim of shape (C, K), by its job and by its family; -1 for padding."""
    victims = colocations.victims
    by_row = {
        "job": job_folds(list(victims["job_id"])),
        "family": family_folds(list(victims["family"])),
    }
    real = colocations.mask > 0
    return {
        split: np.where(real, folds[np.maximum(colocations.rows, 0)], -1)
        for split, folds in by_row.items()
    }


def colocation_weights(members: cv.Members, folds: dict[str, Folds], known: Array) -> Array:
    """Row weights (stack, C, K): a co-location is hidden when any member is of the fold."""
    seen = [
        (folds[split] != fold).all(axis=1, keepdims=True) * known
        for split, fold in zip(members.split, members.fold, strict=True)
    ]
    return np.array(seen)


def train(
    solo: pd.DataFrame,
    interference: pd.DataFrame,
    forecasts: Mapping[str, pd.DataFrame],
    config: InterferenceConfig,
) -> Trained:
    """Fit, judge and export the predictor: forecasts are of every victim, by both splits."""
    import torch

    from presage.models.export_onnx import InterferencePredictor, export, select_members

    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    data = {s: assemble(interference, member_features(solo, forecasts, s)) for s in cv.SPLITS}
    of_job = data["job"]  # but for their members' solo medians, the splits' tables are equal
    folds = victim_folds(of_job)
    plan = cv.plan_members(config.ensemble, folds)
    weights = colocation_weights(plan, folds, of_job.known)
    x = {split: transform_features(data[split].members, "common") for split in cv.SPLITS}
    inputs = np.stack([x[split] for split in plan.split])
    with training_progress("interference") as progress:
        stack = fit_interference(
            inputs, of_job.mask, of_job.log_slowdown, weights, config, progress=progress
        )
    with torch.no_grad():
        outputs = stack(torch.from_numpy(inputs).float(), torch.from_numpy(of_job.mask).float())
    real = of_job.known > 0
    per_victim = outputs.numpy().astype(np.float64)[:, real]  # (stack, victims, levels)
    y, order = of_job.log_slowdown[real], of_job.rows[real]
    parts = []
    for split in cv.SPLITS:
        of_victim = folds[split][real]
        raw = cv.out_of_fold(per_victim, plan, split, of_victim)
        reason = of_job.victims.loc[order, f"reason.{split}"]
        strange = (reason != "").to_numpy(bool)
        calibrated = np.maximum(cv.calibrate_out_of_fold(y, raw, of_victim, strange), 0)
        part = of_job.victims.loc[order, ["colocation", "member", "members", *WHO]]
        part = part.assign(split=split, features="full", fold=of_victim, measured=np.exp(y))
        part[QUANTILES] = np.exp(calibrated)
        part["in_domain"], part["reason"] = ~strange, reason
        parts.append(part)
        if split == "job":
            margins = cv.release_margins(y, raw, of_victim)
    further = cv.stranger_margins(y, raw, strange, margins)  # of the last split, by family
    select_members(stack, plan.of("job", HELD_OUT_FOLD))
    example = torch.from_numpy(of_job.members[:2]).float()
    mask = torch.from_numpy(of_job.mask[:2]).float()
    leading = ("colocations", "members")
    onnx = export(
        InterferencePredictor(stack, of_job.members.shape[-1], margins),
        {"members": (example, leading), "mask": (mask, leading)},
    )
    return Trained(pd.concat(parts, ignore_index=True), onnx, further)


def main(argv: list[str] | None = None) -> None:
    """Command line of the stage."""
    parser = argparse.ArgumentParser(description="DVC stage: features -> interference predictor")
    parser.add_argument("--features", type=Path, required=True, help="folder of featurize")
    parser.add_argument("--models", type=Path, required=True, help="folder of the solo predictors")
    parser.add_argument("--target", type=Path, required=True, help="folder to write")
    args = parser.parse_args(argv)
    config = read_params("train.interference", InterferenceConfig)
    solo = read_table(args.features / "solo.parquet")
    interference = read_table(args.features / "interference.parquet")
    forecasts = {
        name: read_table(args.models / name / "forecasts.parquet") for name in SOLO_PREDICTORS
    }
    train(solo, interference, forecasts, config).write(args.target)


if __name__ == "__main__":
    run_stage(main)
