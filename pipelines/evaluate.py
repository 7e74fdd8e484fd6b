"""DVC stage: out-of-fold forecasts -> metrics beside the baselines, and plots."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from presage.models import baselines
from presage.models.fit import LEVELS, transform_features
from presage.models.metrics import interval_metrics, point_metrics
from presage.models.release import PREDICTORS
from presage.models.splits import family_folds, job_folds
from presage.models.targets import TARGETS
from presage.pipelines import cross_validation as cv
from presage.pipelines.stage import read_table, run_stage, write_atomically
from presage.pipelines.train import QUANTILES, feature_matrix
from presage.pipelines.train_interference import assemble, member_features, victim_folds

Scores = dict[str, float]


def score_forecasts(table: pd.DataFrame) -> dict[str, dict[str, Scores]]:
    """Metrics of a predictor's forecasts: split -> "mlp" or "mlp_published" -> figures."""
    scores: dict[str, dict[str, Scores]] = {}
    table = table[table["measured"].notna()]
    for (split, features), rows in table.groupby(["split", "features"], sort=True):
        y, quantiles = rows["measured"].to_numpy(), rows[QUANTILES].to_numpy()
        figures = point_metrics(y, quantiles[:, LEVELS.index(0.5)])
        for level, coverage in cv.COVERAGES.items():
            low = LEVELS.index(level)
            found = interval_metrics(y, quantiles[:, low], quantiles[:, len(LEVELS) - 1 - low])
            figures |= {f"{name}_{coverage:.0%}": value for name, value in found.items()}
        name = "mlp" if features == "full" else f"mlp_{features}"
        scores.setdefault(str(split), {})[name] = figures
    return scores


def solo_baselines(solo: pd.DataFrame, predictor: str) -> dict[str, dict[str, Scores]]:
    """Baselines on the same features, folds and learnt target: split -> name -> figures.

    The constant is the exception: it is the median of the target itself.
    """
    target = TARGETS[predictor]
    solo = solo[solo[target.column].notna()]
    features = feature_matrix(solo, "full")
    measured = solo[target.column].to_numpy(np.float64)
    learnt = target.to_learnt(measured, features)
    x = transform_features(features, "full")
    folds = {"job": job_folds(list(solo["job_id"])), "family": family_folds(list(solo["family"]))}
    scores: dict[str, dict[str, Scores]] = {split: {} for split in folds}
    for split, of_row in folds.items():
        for name in baselines.BASELINES:
            if name == "constant":
                forecast = baselines.out_of_fold(name, x, measured, of_row)
            else:
                out = baselines.out_of_fold(name, x, learnt, of_row)
                forecast = target.to_measured(out[:, None], features)[:, 0]
            scores[split][name] = point_metrics(measured, forecast)
    return scores


def interference_baselines(
    solo: pd.DataFrame, interference: pd.DataFrame, forecasts: Mapping[str, pd.DataFrame]
) -> dict[str, dict[str, Scores]]:
    """Baselines on the victim's features beside the sums of its co-runners' features."""
    scores: dict[str, dict[str, Scores]] = {}
    for split in cv.SPLITS:
        data = assemble(interference, member_features(solo, forecasts, split))
        real = data.known > 0
        x = transform_features(data.members, "full") * data.mask[:, :, None]
        others = x.sum(axis=1, keepdims=True) - x
        rows = np.concatenate([x, others], axis=-1)[real]
        y = data.log_slowdown[real]
        folds = victim_folds(data)[split]
        hidden = np.stack([(folds == f).any(axis=1) for f in range(folds.max() + 1)], axis=-1)
        per_victim = np.repeat(hidden[:, None], folds.shape[1], axis=1)[real]
        scores[split] = {
            name: point_metrics(
                np.exp(y),
                np.exp(baselines.out_of_fold(name, rows, y, folds[real], per_victim)),
            )
            for name in baselines.BASELINES
        }
    return scores


def evaluate(
    solo: pd.DataFrame, interference: pd.DataFrame, forecasts: Mapping[str, pd.DataFrame]
) -> dict[str, dict[str, dict[str, Scores]]]:
    """Metrics: predictor -> split -> model -> figures."""
    metrics = {}
    for predictor in PREDICTORS:
        scores = score_forecasts(forecasts[predictor])
        if predictor == "interference":
            beside = interference_baselines(solo, interference, forecasts)
        else:
            beside = solo_baselines(solo, predictor)
        metrics[predictor] = {split: scores[split] | beside[split] for split in scores}
    return metrics


def calibration_rows(forecasts: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """How often the measured value lies under each quantile, beside how often it should."""
    rows: list[dict[str, Any]] = []
    for predictor, table in forecasts.items():
        full = table[(table["features"] == "full") & table["measured"].notna()]
        for split, part in full.groupby("split"):
            for level, name in zip(LEVELS, QUANTILES, strict=True):
                below = (part["measured"] <= part[name]).to_numpy()
                rows.append(
                    {"predictor": predictor, "split": split, "promised": level,
                     "observed": round(float(below.mean()), 6)}
                )  # fmt: skip
    return pd.DataFrame(rows)


def main(argv: list[str] | None = None) -> None:
    """Command line of the stage."""
    parser = argparse.ArgumentParser(description="DVC stage: forecasts -> metrics and plots")
    parser.add_argument("--features", type=Path, required=True, help="folder of featurize")
    parser.add_argument("--models", type=Path, required=True, help="folder of the predictors")
    parser.add_argument("--target", type=Path, required=True, help="folder to write")
    args = parser.parse_args(argv)
    solo = read_table(args.features / "solo.parquet")
    interference = read_table(args.features / "interference.parquet")
    forecasts = {p: read_table(args.models / p / "forecasts.parquet") for p in PREDICTORS}
    metrics = evaluate(solo, interference, forecasts)
    text = json.dumps(metrics, indent=2, sort_keys=True) + "\n"
    write_atomically(args.target / "metrics.json", lambda path: path.write_text(text))
    plots = args.target / "plots"
    for predictor, table in forecasts.items():
        points = table[(table["features"] == "full") & table["measured"].notna()]
        points = points.rename(columns={"q0.5": "predicted"})
        points = points[["split", "family", "measured", "predicted"]]
        write_csv(points, plots / f"{predictor}.csv")
    write_csv(calibration_rows(forecasts), plots / "calibration.csv")


def write_csv(rows: pd.DataFrame, path: Path) -> None:
    """Rows as `dvc plots` reads them."""
    write_atomically(path, lambda partial: rows.to_csv(partial, index=False, float_format="%.6g"))


if __name__ == "__main__":
    run_stage(main)
