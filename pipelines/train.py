"""DVC stage: features -> one solo predictor (compute utilization, memory or step time)."""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from presage.features.schema import columns
from presage.models.conformal import Array
from presage.models.fit import (
    LEVELS,
    FitConfig,
    ScalarStack,
    fit_scalar,
    inputs_of,
    quantiles_of,
    transform_features,
)
from presage.models.splits import HELD_OUT_FOLD, Folds, family_folds, job_folds
from presage.models.targets import TARGETS, Target
from presage.pipelines import cross_validation as cv
from presage.pipelines.feature_table import feature_matrix
from presage.pipelines.progress import training_progress
from presage.pipelines.stage import read_params, read_table, run_stage, write_atomically

QUANTILES = [f"q{level:g}" for level in LEVELS]
WHO = ["job_id", "family", "device_kind", "machine", "campaign"]


@dataclass(frozen=True)
class CrossValidation:
    """A stack of networks and what each said of the rows it had not seen."""

    stack: ScalarStack
    members: cv.Members
    learnt: Array  # (rows,)
    outputs: Array  # (members, rows, levels)
    folds: dict[str, Folds]

    def out_of_fold(self, split: str) -> Array:
        """Uncalibrated quantiles of shape (rows, levels)."""
        return cv.out_of_fold(self.outputs, self.members, split, self.folds[split])


def cross_validate(
    solo: pd.DataFrame, target: Target, feature_set: str, config: FitConfig
) -> CrossValidation:
    """Fit every fold of both splits, side by side.

    A row of which the target was not measured is not learnt from, but has a forecast too.
    """
    folds = {"job": job_folds(list(solo["job_id"])), "family": family_folds(list(solo["family"]))}
    members = cv.plan_members(config.ensemble, folds)
    learnt = target.to_learnt(
        solo[target.column].to_numpy(np.float64), feature_matrix(solo, "full")
    )
    x = transform_features(feature_matrix(solo, feature_set), feature_set)
    measured = np.isfinite(learnt)
    weights = cv.training_weights(members, folds) * measured
    inputs = inputs_of(target.inputs, feature_set)
    with training_progress(f"{target.predictor}, {feature_set} features") as progress:
        stack = fit_scalar(
            x, np.where(measured, learnt, 0), weights, inputs, config, progress=progress
        )
    return CrossValidation(stack, members, learnt, quantiles_of(stack, x), folds)


def forecasts(
    solo: pd.DataFrame, target: Target, feature_set: str, fitted: CrossValidation
) -> pd.DataFrame:
    """Calibrated out-of-fold quantiles beside what was measured, in the target's unit."""
    parts = []
    for split, folds in fitted.folds.items():
        reason = solo[f"reason.{split}"]
        strange = (reason != "").to_numpy(bool)
        raw = fitted.out_of_fold(split)
        calibrated = cv.calibrate_out_of_fold(fitted.learnt, raw, folds, strange)
        measured = target.to_measured(calibrated, feature_matrix(solo, "full"))
        part = solo[WHO].assign(split=split, features=feature_set, fold=folds)
        part["measured"] = solo[target.column].to_numpy(np.float64)
        part[QUANTILES] = measured
        part["in_domain"], part["reason"] = ~strange, reason
        parts.append(part)
    return pd.concat(parts, ignore_index=True)


@dataclass(frozen=True)
class Trained:
    """What a predictor's stage leaves.

    Attributes
    ----------
    forecasts : DataFrame
        Out-of-fold, of every row, by both splits and feature sets.
    onnx : bytes
        The network to ship.
    stranger_margins : dict of float to float
        By level, what an interval's ends are moved further where a job is out of domain: in
        logarithms of a scale, in log-odds of a fraction.
    """

    forecasts: pd.DataFrame
    onnx: bytes
    stranger_margins: dict[float, float]

    def write(self, folder: Path) -> None:
        """Write what later stages read."""
        write_atomically(folder / "model.onnx", lambda path: path.write_bytes(self.onnx))
        text = json.dumps({f"{k:g}": v for k, v in self.stranger_margins.items()}) + "\n"
        write_atomically(folder / "strangers.json", lambda path: path.write_text(text))
        write_atomically(folder / "forecasts.parquet", self.forecasts.to_parquet)


def train(solo: pd.DataFrame, target: Target, config: FitConfig) -> Trained:
    """Fit, judge and export a predictor.

    The shipped network has not seen the held-out fold: what the gate measures is what is served.
    """
    import torch

    from presage.models.export_onnx import ScalarPredictor, export, select_members

    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    # The published set knows no roofline: it learns the scale itself.
    unaided = replace(target, prior=None, inputs=tuple(columns("published")))
    published = cross_validate(solo, unaided, "published", replace(config, ensemble=1))
    full = cross_validate(solo, target, "full", config)
    table = pd.concat(
        [
            forecasts(solo, unaided, "published", published),
            forecasts(solo, target, "full", full),
        ],
        ignore_index=True,
    )
    margins = cv.release_margins(full.learnt, full.out_of_fold("job"), full.folds["job"])
    select_members(full.stack, full.members.of("job", HELD_OUT_FOLD))
    example = torch.tensor(feature_matrix(solo.head(2), "full")).float()
    predictor = ScalarPredictor(full.stack, target, margins)
    strange = (solo["reason.family"] != "").to_numpy(bool)
    return Trained(
        table,
        export(predictor, {"features": (example, ("rows",))}),
        cv.stranger_margins(full.learnt, full.out_of_fold("family"), strange, margins),
    )


def main(argv: list[str] | None = None) -> None:
    """Command line of the stage."""
    parser = argparse.ArgumentParser(description="DVC stage: features -> one solo predictor")
    parser.add_argument("predictor", choices=sorted(TARGETS))
    parser.add_argument("--features", type=Path, required=True, help="folder of featurize")
    parser.add_argument("--target", type=Path, required=True, help="folder to write")
    args = parser.parse_args(argv)
    config = read_params("train.solo", FitConfig)
    solo = read_table(args.features / "solo.parquet")
    train(solo, TARGETS[args.predictor], config).write(args.target)


if __name__ == "__main__":
    run_stage(main)
