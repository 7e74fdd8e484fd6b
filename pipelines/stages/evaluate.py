"""DVC stage: out-of-fold forecasts -> metrics beside the baselines, and plots."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from presage.errors import TableError
from presage.features.quantities.registry import QUANTITIES
from presage.models.calibration.error_metrics import point_metrics
from presage.models.training import baselines
from presage.models.training.fit import select_inputs, transform_features
from presage.models.training.splits import folds_by_split
from presage.pipelines.evaluation import cross_validation as cv
from presage.pipelines.evaluation.evaluation_tables import (
    GROUPS,
    calibration_guarantee,
    calibration_rows,
    error_by,
    figures,
    judged,
)
from presage.pipelines.stages.feature_table import feature_matrix
from presage.pipelines.stages.fit_solo import FORECAST_KEY, QUANTILES
from presage.pipelines.stages.stage import read_table, replace_folder, run_stage
from presage.pipelines.stages.train_interference import (
    Colocations,
    member_features,
    pad_colocations,
    victim_folds,
)
from presage.system.files.atomic_file import write_atomically
from presage.system.text.progress import counted_progress

Scores = dict[str, float]
# Predictor -> split -> model -> figures.
Metrics = dict[str, dict[str, dict[str, Scores]]]
Summary = dict[str, dict[str, Scores]]  # predictor -> split -> figures

SUMMARY = ("mape", "median_ape", "coverage_90%")
FORECAST_COLUMNS = (*FORECAST_KEY, "split", "features", "fold", "measured", *QUANTILES)


def read_forecasts(models: Path) -> dict[str, pd.DataFrame]:
    """What each predictor's stage forecast of rows that it had not seen.

    Raises
    ------
    TableError
        A table is missing or not parquet, lacks a column, or holds no number where one must be.
    """
    forecasts = {}
    for predictor in QUANTITIES:
        path = models / predictor / "forecasts.parquet"
        table = read_table(path)
        missing = [name for name in FORECAST_COLUMNS if name not in table]
        if missing:
            raise TableError(
                f"{path}: no column {missing[0]!r} ({len(missing)} of {len(FORECAST_COLUMNS)} "
                "missing); delete it and `dvc repro`"
            )
        for name in ("measured", *QUANTILES):
            if not pd.api.types.is_numeric_dtype(table[name]):
                raise TableError(
                    f"{path}: column {name!r} is {table[name].dtype}, must hold numbers; "
                    "delete it and `dvc repro`"
                )
        _check_rows(table, path)
        forecasts[predictor] = table
    return forecasts


def _check_rows(table: pd.DataFrame, path: Path) -> None:
    known = np.isfinite(table[QUANTILES].to_numpy(dtype=np.float64)).all(axis=1)
    if not known.all():
        raise TableError(
            f"{path}: row {int(np.argmin(known))} has a quantile that is no number; "
            "delete it and `dvc repro`"
        )
    ours = table[(table["features"] == "full") & table["measured"].notna()]
    for split in cv.SPLITS:
        if not (ours["split"] == split).any():
            raise TableError(
                f"{path}: no measured row of split {split!r} has a forecast by the full features; "
                "measure more jobs (`presage profile --budget ...`) and `dvc repro`"
            )


def score_forecasts(table: pd.DataFrame) -> dict[str, dict[str, Scores]]:
    """Metrics of a predictor's forecasts: split -> "mlp" or "mlp_published" -> figures."""
    scores: dict[str, dict[str, Scores]] = {}
    table = table[table["measured"].notna()]
    for (split, features), rows in table.groupby(["split", "features"], sort=True):
        name = "mlp" if features == "full" else f"mlp_{features}"
        scores.setdefault(str(split), {})[name] = figures(rows)
    return scores


def solo_baselines(solo: pd.DataFrame, predictor: str) -> dict[str, dict[str, Scores]]:
    """Baselines on the same features, folds and learnt target: split -> name -> figures.

    The constant is the exception: it is the median of the measured values.
    """
    quantity = QUANTITIES[predictor]
    solo = solo[solo[quantity.column].notna()]
    features = feature_matrix(solo, "full")
    measured = solo[quantity.column].to_numpy(np.float64)
    learnt = quantity.to_learnt(measured, features)
    read = select_inputs(quantity.inputs, "full")
    x = transform_features(features, "full")[:, [*read.columns, *read.identity]]
    folds = folds_by_split(solo)
    scores: dict[str, dict[str, Scores]] = {split: {} for split in folds}
    fits = len(baselines.BASELINES) * sum(len(np.unique(of_row)) for of_row in folds.values())
    with counted_progress(f"baselines beside {predictor}", fits) as step:
        for split, of_row in folds.items():
            for name in baselines.BASELINES:
                y = measured if name == "constant" else learnt
                forecast = baselines.predict_out_of_fold(name, x, y, of_row, on_fold=step)
                if name != "constant":
                    forecast = quantity.to_measured(forecast[:, None], features)[:, 0]
                scores[split][name] = point_metrics(measured, forecast)
    return scores


def interference_baselines(
    solo: pd.DataFrame, interference: pd.DataFrame, forecasts: Mapping[str, pd.DataFrame]
) -> dict[str, dict[str, Scores]]:
    """Baselines on the victim's features beside the sums of its co-runners' features."""
    return {
        split: _victim_baselines(
            pad_colocations(interference, member_features(solo, forecasts, split)), split
        )
        for split in cv.SPLITS
    }


def _victim_baselines(data: Colocations, split: str) -> dict[str, Scores]:
    real = data.known > 0
    x = data.members * data.mask[:, :, None]
    others = x.sum(axis=1, keepdims=True) - x
    rows = np.concatenate([x, others], axis=-1)[real]
    y = data.log_slowdown[real]
    folds = victim_folds(data)[split]
    hidden = np.stack([(folds == f).any(axis=1) for f in range(folds.max() + 1)], axis=-1)
    per_victim = np.repeat(hidden[:, None], folds.shape[1], axis=1)[real]
    of_victim = folds[real]
    fits = len(baselines.BASELINES) * len(np.unique(of_victim))
    scores = {}
    with counted_progress(f"baselines beside interference, unseen {split}", fits) as step:
        for name in baselines.BASELINES:
            found = baselines.predict_out_of_fold(
                name, rows, y, of_victim, per_victim, on_fold=step
            )
            scores[name] = point_metrics(np.exp(y), np.exp(found))
    return scores


def evaluate(
    solo: pd.DataFrame, interference: pd.DataFrame, forecasts: Mapping[str, pd.DataFrame]
) -> Metrics:
    """Figures of the networks and of the baselines, which are fitted here: that takes minutes."""
    metrics = {}
    for predictor, quantity in QUANTITIES.items():
        scores = score_forecasts(forecasts[predictor])
        if quantity.scope == "co-location":
            beside = interference_baselines(solo, interference, forecasts)
        else:
            beside = solo_baselines(solo, predictor)
        metrics[predictor] = {split: scores[split] | beside[split] for split in scores}
    return metrics


def read_previous_metrics(folder: Path, forecasts: Mapping[str, pd.DataFrame]) -> Metrics | None:
    """What the stage left in a folder, if it is of these very forecasts; else None.

    It is when the networks' figures are equal to the last digit: the baselines beside them are of
    the same rows, and need not be fitted again.
    """
    try:
        left: Metrics = json.loads((folder / "metrics.json").read_text())
        for predictor in QUANTITIES:
            for split, models in score_forecasts(forecasts[predictor]).items():
                if {name: left[predictor][split][name] for name in models} != models:
                    return None
                if not baselines.BASELINES.keys() <= left[predictor][split].keys():
                    return None
    except (OSError, ValueError, KeyError, TypeError):  # none, or not of this layout
        return None
    return left


def write_evaluation(metrics: Metrics, forecasts: Mapping[str, pd.DataFrame], target: Path) -> None:
    """``metrics.json``, ``summary.json``, ``promises.json``; ``plots``, which `dvc plots` draws.

    ``metrics.json`` goes first and comes last: where it is, all is of the same forecasts.
    """
    (target / "metrics.json").unlink(missing_ok=True)
    replace_folder(target / "plots", _plot_names(), lambda folder: _write_plots(forecasts, folder))
    promised = {
        predictor: calibration_guarantee(judged(table)) for predictor, table in forecasts.items()
    }
    _write_json(promised, target / "promises.json")
    _write_json(summary(metrics), target / "summary.json")
    _write_json(metrics, target / "metrics.json")


def _plot_names() -> tuple[str, ...]:
    tables = (f"{name}.csv" for name in ("calibration", *QUANTITIES))
    return (*tables, *(f"error_by_{group}" for group in GROUPS))


def _write_json(content: Metrics | Summary, path: Path) -> None:
    text = json.dumps(content, indent=2, sort_keys=True) + "\n"
    write_atomically(path, lambda partial: partial.write_text(text))


def summary(metrics: Metrics) -> Summary:
    """What a person compares two trainings by, of the networks that are served: DVC's metrics."""
    return {
        predictor: {
            split: {name: float(f"{models['mlp'][name]:.5g}") for name in SUMMARY}
            for split, models in of_split.items()
        }
        for predictor, of_split in metrics.items()
    }


def _write_plots(forecasts: Mapping[str, pd.DataFrame], folder: Path) -> None:
    for predictor, table in forecasts.items():
        rows = judged(table)
        points = rows[["split", "family", "device_kind", "domain", "measured", "predicted"]]
        write_csv(points, folder / f"{predictor}.csv")
        for group in GROUPS:
            write_csv(error_by(group, rows), folder / f"error_by_{group}" / f"{predictor}.csv")
    write_csv(calibration_rows(forecasts), folder / "calibration.csv")


def main(argv: list[str] | None = None) -> None:
    """Command line of the stage."""
    parser = argparse.ArgumentParser(description="DVC stage: forecasts -> metrics and plots")
    parser.add_argument("--features", type=Path, required=True, help="folder of featurize")
    parser.add_argument("--models", type=Path, required=True, help="folder of the predictors")
    parser.add_argument("--target", type=Path, required=True, help="folder to write")
    args = parser.parse_args(argv)
    forecasts = read_forecasts(args.models)
    write_evaluation(evaluate(*read_features(args.features), forecasts), forecasts, args.target)


def read_features(folder: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Rows alone and rows of co-locations, as featurize left them."""
    return read_table(folder / "solo.parquet"), read_table(folder / "interference.parquet")


def write_csv(rows: pd.DataFrame, path: Path) -> None:
    """Rows as `dvc plots` reads them."""
    write_atomically(path, lambda partial: rows.to_csv(partial, index=False, float_format="%.6g"))


if __name__ == "__main__":
    run_stage(main)
