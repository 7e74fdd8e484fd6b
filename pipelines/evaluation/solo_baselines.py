"""DVC stage: features -> the metrics of baselines of one solo quantity.

They do not depend on any network, so that a change of a network's settings does not repeat them.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import pandas as pd

from presage.errors import TableError
from presage.features.quantities.quantity_registry import QUANTITIES, solo_quantities
from presage.models.calibration.error_metrics import point_metrics
from presage.models.training import baselines
from presage.models.training.fit import select_inputs, transform_features
from presage.models.training.splits import folds_by_split
from presage.pipelines.evaluation import cross_validation as cv
from presage.pipelines.stages.feature_table import feature_matrix
from presage.pipelines.stages.stage import read_table, run_stage
from presage.system.files.atomic_file import write_atomically
from presage.system.text.progress import counted_progress

Scores = dict[str, float]
BySplit = dict[str, dict[str, Scores]]  # split -> baseline -> figures


def solo_baselines(solo: pd.DataFrame, predictor: str) -> BySplit:
    """Return the metrics of baselines on the same features, folds and target, by split and name.

    The constant baseline is the exception: it predicts the median of the measured values. Without
    enough rows to train on, there are no metrics.
    """
    quantity = QUANTITIES[predictor]
    solo = solo[solo[quantity.column].notna()]
    if not cv.leaves_enough(folds_by_split(solo), np.ones(len(solo), dtype=bool)):
        return {}
    features = feature_matrix(solo, "full")
    measured = solo[quantity.column].to_numpy(np.float64)
    target = quantity.to_learnt(measured, features)
    read = select_inputs(quantity.inputs, "full")
    x = transform_features(features, "full")[:, [*read.columns, *read.identity]]
    folds = folds_by_split(solo)
    scores: BySplit = {split: {} for split in folds}
    fits = len(baselines.BASELINES) * sum(
        len(np.unique(fold_of_row)) for fold_of_row in folds.values()
    )
    with counted_progress(f"baselines of {predictor}", fits) as step:
        for split, fold_of_row in folds.items():
            for name in baselines.BASELINES:
                y = measured if name == "constant" else target
                forecast = baselines.predict_out_of_fold(name, x, y, fold_of_row, on_fold=step)
                if name != "constant":
                    forecast = quantity.to_measured(forecast[:, None], features)[:, 0]
                scores[split][name] = point_metrics(measured, forecast)
    return scores


def read_solo_baselines(folder: Path, predictor: str) -> BySplit:
    """Return the metrics that this stage wrote to a file of ``folder``.

    Raises
    ------
    TableError
        The file is missing or not JSON.
    """
    path = folder / f"{predictor}.json"
    try:
        content: BySplit = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise TableError(
            f"{path}: not readable as JSON ({error}); run the stage before with `dvc repro`"
        ) from error
    return content


def main(argv: list[str] | None = None) -> None:
    """Run the stage from the command line."""
    parser = argparse.ArgumentParser(description="DVC stage: features -> metrics of baselines")
    parser.add_argument("quantity", choices=sorted(solo_quantities()))
    parser.add_argument("--features", type=Path, required=True, help="folder of featurize")
    parser.add_argument("--target", type=Path, required=True, help="JSON file to write")
    args = parser.parse_args(argv)
    solo = read_table(args.features / "solo.parquet")
    text = json.dumps(solo_baselines(solo, args.quantity), indent=2, sort_keys=True) + "\n"
    args.target.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(args.target, lambda path: path.write_text(text))


if __name__ == "__main__":
    run_stage(main)
