"""DVC stage: out-of-fold forecasts -> metrics, with those of baselines, and plots."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from presage.errors import TableError
from presage.features.quantities.quantity_registry import QUANTITIES
from presage.models.calibration.error_metrics import point_metrics
from presage.models.training import baselines
from presage.models.training.loss_curves import COLUMNS
from presage.pipelines.evaluation import cross_validation as cv
from presage.pipelines.evaluation.evaluation_tables import (
    GROUPS,
    calibration_guarantee,
    calibration_rows,
    error_by,
    figures,
    judged,
)
from presage.pipelines.evaluation.solo_baselines import read_solo_baselines, solo_baselines
from presage.pipelines.stages.fit_solo import FORECAST_KEY, QUANTILES
from presage.pipelines.stages.stage import read_table, replace_folder, run_stage, write_csv
from presage.pipelines.stages.train_interference import (
    Colocations,
    member_features,
    pad_colocations,
    victim_folds,
)
from presage.pipelines.trained_quantities import LOSS, LOSS_CURVES, trained_quantities
from presage.system.files.atomic_file import write_atomically
from presage.system.text.progress import counted_progress

Scores = dict[str, float]
# Predictor -> split -> model -> figures.
Metrics = dict[str, dict[str, dict[str, Scores]]]
Summary = dict[str, dict[str, Scores]]  # predictor -> split -> figures

CURVE_COLUMNS = ["device_class", *COLUMNS]
MOST_POINTS = 20_000  # of a plot; evenly spaced if there are more
SUMMARY = ("mape", "median_ape", "coverage_90%")
FORECAST_COLUMNS = (*FORECAST_KEY, "split", "features", "fold", "measured", *QUANTILES)


def read_forecasts(models: Path) -> dict[str, pd.DataFrame]:
    """Read the out-of-fold forecasts of each predictor's stage; of trained quantities only.

    Raises
    ------
    TableError
        A table is missing or not parquet, lacks a column, or has a column that is not numeric.
    """
    forecasts = {}
    for predictor in trained_quantities(models):
        path = models / predictor / "forecasts.parquet"
        table = read_table(path)
        missing = [name for name in FORECAST_COLUMNS if name not in table]
        if missing:
            raise TableError(
                f"{path}: no column {missing[0]!r} ({len(missing)} of {len(FORECAST_COLUMNS)} "
                "missing); delete the file and run `dvc repro`"
            )
        for name in ("measured", *QUANTILES):
            if not pd.api.types.is_numeric_dtype(table[name]):
                raise TableError(
                    f"{path}: column {name!r} has type {table[name].dtype}, must be numeric; "
                    "delete the file and run `dvc repro`"
                )
        _check_rows(table, path)
        forecasts[predictor] = table
    return forecasts


def read_loss_curves(models: Path) -> dict[str, pd.DataFrame]:
    """Read the loss curves of each predictor's stage; empty for networks without them."""
    out = {}
    for predictor in QUANTITIES:
        path = models / predictor / LOSS_CURVES
        known = path.is_file()
        out[predictor] = pd.read_csv(path) if known else pd.DataFrame(columns=CURVE_COLUMNS)
    return out


def _check_rows(table: pd.DataFrame, path: Path) -> None:
    is_finite = np.isfinite(table[QUANTILES].to_numpy(dtype=np.float64)).all(axis=1)
    if not is_finite.all():
        raise TableError(
            f"{path}: row {int(np.argmin(is_finite))} has a quantile that is not finite; "
            "delete the file and run `dvc repro`"
        )
    measured = table[(table["features"] == "full") & table["measured"].notna()]
    for split in cv.SPLITS:
        if not (measured["split"] == split).any():
            raise TableError(
                f"{path}: no measured row of split {split!r} has a forecast from the full "
                "features; measure more jobs (`presage profile --budget ...`) and run `dvc repro`"
            )


def score_forecasts(table: pd.DataFrame) -> dict[str, dict[str, Scores]]:
    """Return the metrics of forecasts: split -> "mlp" or "mlp_published" -> figures."""
    scores: dict[str, dict[str, Scores]] = {}
    table = table[table["measured"].notna()]
    for (split, features), rows in table.groupby(["split", "features"], sort=True):
        name = "mlp" if features == "full" else f"mlp_{features}"
        scores.setdefault(str(split), {})[name] = figures(rows)
    return scores


def interference_baselines(
    solo: pd.DataFrame, interference: pd.DataFrame, forecasts: Mapping[str, pd.DataFrame]
) -> dict[str, dict[str, Scores]]:
    """Return the metrics of baselines on the victim's features and the sum of its co-runners'."""
    return {
        split: _victim_baselines(
            pad_colocations(interference, member_features(solo, forecasts, split)), split
        )
        for split in cv.SPLITS
    }


def _victim_baselines(data: Colocations, split: str) -> dict[str, Scores]:
    is_victim = data.known > 0
    x = data.members * data.mask[:, :, None]
    co_runners = x.sum(axis=1, keepdims=True) - x
    rows = np.concatenate([x, co_runners], axis=-1)[is_victim]
    y = data.log_slowdown[is_victim]
    folds = victim_folds(data)[split]
    hidden = np.stack([(folds == f).any(axis=1) for f in range(folds.max() + 1)], axis=-1)
    per_victim = np.repeat(hidden[:, None], folds.shape[1], axis=1)[is_victim]
    victim_fold = folds[is_victim]
    members = np.repeat(data.mask.sum(axis=1, keepdims=True), folds.shape[1], axis=1)[is_victim]
    names = (*baselines.BASELINES, baselines.MEAN_BY_MEMBERS)
    fits = len(names) * len(np.unique(victim_fold))
    scores = {}
    with counted_progress(f"baselines of interference, unseen {split}", fits) as step:
        for name in names:
            read = members[:, None] if name == baselines.MEAN_BY_MEMBERS else rows
            found = baselines.predict_out_of_fold(
                name, read, y, victim_fold, per_victim, on_fold=step
            )
            scores[name] = point_metrics(np.exp(y), np.exp(found))
    return scores


def evaluate(
    solo: pd.DataFrame,
    interference: pd.DataFrame,
    forecasts: Mapping[str, pd.DataFrame],
    known: Path | None = None,
) -> Metrics:
    """Return the metrics of the networks, and of baselines, whose fits take minutes.

    ``known`` is a folder with the metrics of the solo quantities' baselines.
    """
    metrics = {}
    for predictor in forecasts:
        quantity = QUANTITIES[predictor]
        scores = score_forecasts(forecasts[predictor])
        if quantity.scope == "co-location":
            baseline_scores = interference_baselines(solo, interference, forecasts)
        elif known is not None:
            baseline_scores = read_solo_baselines(known, predictor)
        else:
            baseline_scores = solo_baselines(solo, predictor)
        metrics[predictor] = {
            split: scores[split] | baseline_scores.get(split, {}) for split in scores
        }
    return metrics


def read_previous_metrics(folder: Path, forecasts: Mapping[str, pd.DataFrame]) -> Metrics | None:
    """Return the metrics in a folder if they are of these forecasts; else None.

    They are if the metrics of the networks are equal to the last digit. Then the baselines, of the
    same rows, need not be fitted again.
    """
    try:
        previous: Metrics = json.loads((folder / "metrics.json").read_text())
        for predictor in forecasts:
            for split, models in score_forecasts(forecasts[predictor]).items():
                if {name: previous[predictor][split][name] for name in models} != models:
                    return None
                if not baselines.BASELINES.keys() <= previous[predictor][split].keys():
                    return None
    except (OSError, ValueError, KeyError, TypeError):  # missing, or with another layout
        return None
    return previous


def write_evaluation(
    metrics: Metrics,
    forecasts: Mapping[str, pd.DataFrame],
    curves: Mapping[str, pd.DataFrame],
    target: Path,
) -> None:
    """Write ``metrics.json``, ``summary.json``, ``promises.json`` and the tables of `dvc plots`.

    ``metrics.json`` is deleted first and written last: if it exists, all files are of the same
    forecasts.
    """
    (target / "metrics.json").unlink(missing_ok=True)
    replace_folder(
        target / "plots", _plot_names(), lambda folder: _write_plots(forecasts, curves, folder)
    )
    guarantees = {
        predictor: calibration_guarantee(judged(table)) for predictor, table in forecasts.items()
    }
    _write_json(guarantees, target / "promises.json")
    _write_json(summary(metrics), target / "summary.json")
    _write_json(metrics, target / "metrics.json")


def _plot_names() -> tuple[str, ...]:
    tables = (f"{name}.csv" for name in ("calibration", *QUANTITIES))
    return (*tables, LOSS, *(f"error_by_{group}" for group in GROUPS))


def _write_json(content: Metrics | Summary, path: Path) -> None:
    text = json.dumps(content, indent=2, sort_keys=True) + "\n"
    write_atomically(path, lambda partial: partial.write_text(text))


def summary(metrics: Metrics) -> Summary:
    """Return the metrics of the served networks that DVC shows to compare trainings."""
    return {
        predictor: {
            split: {name: float(f"{models['mlp'][name]:.5g}") for name in SUMMARY}
            for split, models in by_split.items()
        }
        for predictor, by_split in metrics.items()
    }


def _write_plots(
    forecasts: Mapping[str, pd.DataFrame], curves: Mapping[str, pd.DataFrame], folder: Path
) -> None:
    any_rows = judged(next(iter(forecasts.values())))
    for predictor in QUANTITIES:
        is_trained = predictor in forecasts
        rows = judged(forecasts[predictor]) if is_trained else any_rows
        points = rows[["split", "family", "device_kind", "domain", "measured", "predicted"]]
        points = points[:: math.ceil(len(points) / MOST_POINTS) or 1]
        tables = {f"{predictor}.csv": points} | {
            f"error_by_{group}/{predictor}.csv": error_by(group, rows) for group in GROUPS
        }
        for name, table in tables.items():
            # `dvc plots` needs the file of an untrained quantity, too.
            write_csv(table if is_trained else table.head(0), folder / name)
        write_csv(curves[predictor], folder / LOSS / f"{predictor}.csv")
    write_csv(calibration_rows(forecasts), folder / "calibration.csv")


def main(argv: list[str] | None = None) -> None:
    """Run the stage from the command line."""
    parser = argparse.ArgumentParser(description="DVC stage: forecasts -> metrics and plots")
    parser.add_argument("--features", type=Path, required=True, help="folder of featurize")
    parser.add_argument("--models", type=Path, required=True, help="folder of the predictors")
    parser.add_argument("--target", type=Path, required=True, help="folder to write")
    parser.add_argument("--baselines", type=Path, help="folder of the solo quantities' baselines")
    args = parser.parse_args(argv)
    forecasts = read_forecasts(args.models)
    metrics = evaluate(*read_features(args.features), forecasts, args.baselines)
    write_evaluation(metrics, forecasts, read_loss_curves(args.models), args.target)


def read_features(folder: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Read the solo rows and the co-location rows that featurize wrote."""
    return read_table(folder / "solo.parquet"), read_table(folder / "interference.parquet")


if __name__ == "__main__":
    run_stage(main)
