"""DVC stage: features -> the predictor of one solo quantity."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import nn

from presage.errors import TrainingError
from presage.features.device.device_class import COMPUTE_CAPABILITY, DEVICE_CLASSES
from presage.features.quantities.quantity import Quantity
from presage.features.quantities.quantity_registry import QUANTITIES, solo_quantities
from presage.models.calibration.margins import NOVELTIES, RELEASE, ByLevel
from presage.models.networks.predictors import (
    MeasuredDeviceRouter,
    ScalarPredictor,
    route_by_device_class,
)
from presage.models.onnx_export.export import export
from presage.models.training.fine_tuning import (
    TrainedNetworks,
    read_scalar_networks,
    write_networks,
)
from presage.models.training.fit import ScalarStack
from presage.models.training.loss_curves import COLUMNS
from presage.models.training.splits import folds_by_split
from presage.models.training.torch_settings import make_torch_deterministic
from presage.pipelines.evaluation import cross_validation as cv
from presage.pipelines.pretraining.pretrained_networks import read_pretrained
from presage.pipelines.stages.feature_table import feature_matrix
from presage.pipelines.stages.fit_settings import Settings, read_settings
from presage.pipelines.stages.fit_solo import (
    FORECAST_KEY,
    IDENTITY_COLUMNS,
    QUANTILES,
    device_identities,
    fit_device_class,
)
from presage.pipelines.stages.stage import read_table, replace_folder, run_stage, write_csv
from presage.pipelines.trained_quantities import FORECASTS, LOSS_CURVES, UNTRAINED, write_untrained
from presage.system.files.atomic_file import write_atomically

OUTPUT_NAMES = (
    "model.onnx", "novelty_margins.json", FORECASTS, LOSS_CURVES,
    *(f"{name}.npz" for name in DEVICE_CLASSES), UNTRAINED,
)  # fmt: skip


@dataclass(frozen=True)
class TrainedPredictor:
    """Output of a predictor's stage.

    Attributes
    ----------
    forecasts : DataFrame
        Out-of-fold forecasts of every row, by both splits and feature sets.
    onnx : bytes
        Predictor to release.
    networks : mapping of str to TrainedNetworks
        Networks trained here, by device class.
    novelty_margins : mapping of str to mapping of str to mapping of float to float
        Further widening of intervals by what is new in a request, device class and level: in
        logarithms of a scale, or log-odds of a fraction.
    curves : DataFrame
        Mean pinball loss on training rows and on held-out rows, by device class, split and step.
    """

    forecasts: pd.DataFrame
    onnx: bytes
    networks: Mapping[str, TrainedNetworks[Any]]
    novelty_margins: Mapping[str, Mapping[str, ByLevel]]
    curves: pd.DataFrame

    def write(self, target: Path) -> None:
        """Write the files that later stages read, as one folder, so they are consistent."""
        replace_folder(target, OUTPUT_NAMES, self._write)

    def _write(self, folder: Path) -> None:
        margins = {
            novelty: {
                name: {f"{level:g}": margin for level, margin in by_level.items()}
                for name, by_level in by_class.items()
            }
            for novelty, by_class in self.novelty_margins.items()
        }
        text = json.dumps(margins, indent=2) + "\n"
        write_atomically(folder / "model.onnx", lambda path: path.write_bytes(self.onnx))
        write_atomically(folder / "novelty_margins.json", lambda path: path.write_text(text))
        write_atomically(folder / FORECASTS, self.forecasts.to_parquet)
        write_csv(self.curves, folder / LOSS_CURVES)
        for name, trained in self.networks.items():
            write_atomically(folder / f"{name}.npz", partial(write_networks, trained))


def max_novelty_margins(
    *known: Mapping[str, TrainedNetworks[Any]],
) -> dict[str, dict[str, ByLevel]]:
    """Return the largest known widening by novelty and device class.

    A class without networks has the assumed one. A class that was measured with one release of the
    framework has none for further releases.
    """
    return {
        novelty: {name: _max_widening(novelty, name, known) for name in DEVICE_CLASSES}
        for novelty in NOVELTIES
    }


def _max_widening(
    novelty: str, device_class: str, known: Sequence[Mapping[str, TrainedNetworks[Any]]]
) -> ByLevel:
    networks = [trained[device_class] for trained in known if device_class in trained]
    found = [one.margins.novel[novelty] for one in networks if novelty in one.margins.novel]
    if not networks and novelty != RELEASE:
        found = [cv.ASSUMED_MARGINS]
    levels = found[0] if found else {}
    return {level: max(by_level[level] for by_level in found) for level in levels}


def train(
    solo: pd.DataFrame,
    quantity: Quantity,
    settings: Settings,
    starts: Mapping[str, TrainedNetworks[ScalarStack]],
) -> TrainedPredictor:
    """Train, cross-validate and export a predictor, with networks for each device class.

    Unmeasured device classes and devices keep the networks of ``starts``. The held-out fold is not
    in training, so the gate evaluates the networks that are served.

    Parameters
    ----------
    solo : DataFrame
        Rows of solo.parquet.
    quantity : Quantity
    settings : Settings
    starts : mapping of str to TrainedNetworks
        Networks to fine-tune, by device class.

    Raises
    ------
    TrainingError
        Too few rows of every class have a measurement, and ``starts`` is empty.
    """
    make_torch_deterministic()
    networks, tables, curves = {}, [], []
    predictors: dict[str, nn.Module] = {
        name: ScalarPredictor(start.stack, quantity, start.margins, start.trees)
        for name, start in starts.items()
    }
    for name in DEVICE_CLASSES:
        rows, start = solo[solo["device_class"] == name], starts.get(name)
        if not can_train(rows, quantity, start):
            continue
        fitted, table, curve = fit_device_class(rows, quantity, settings, start)
        networks[name] = fitted
        tables.append(table)
        curves.append(curve.assign(device_class=name))
        trained: nn.Module = ScalarPredictor(fitted.stack, quantity, fitted.margins, fitted.trees)
        if name in starts:
            known = device_identities(rows[rows[quantity.column].notna()])
            trained = MeasuredDeviceRouter(
                trained, predictors[name], known, IDENTITY_COLUMNS, raw=True
            )
        predictors[name] = trained
    if not predictors:
        raise _too_few_rows(solo, quantity)
    predictor = route_by_device_class(
        predictors, scale=quantity.is_scale, column=COMPUTE_CAPABILITY
    )
    tables.append(
        _forecast_unmeasured(solo[~solo["device_class"].isin(networks)], quantity, predictor)
    )
    example = torch.tensor(feature_matrix(solo.head(2), "full")).float()
    onnx = export(predictor, {"features": (example, ("rows",))})
    forecasts = _sort_forecasts(solo, pd.concat(tables))
    table = pd.concat(curves) if curves else pd.DataFrame(columns=["device_class", *COLUMNS])
    return TrainedPredictor(forecasts, onnx, networks, max_novelty_margins(starts, networks), table)


def _too_few_rows(solo: pd.DataFrame, quantity: Quantity) -> TrainingError:
    measured = int(solo[quantity.column].notna().sum())
    return TrainingError(
        f"{measured} of {len(solo)} rows have {quantity.column}, too few for training: "
        f"without any one job or family, {cv.MIN_CALIBRATION_ROWS} must remain; "
        "measure more jobs (`presage profile --budget ...`)"
    )


def can_train(
    rows: pd.DataFrame, quantity: Quantity, start: TrainedNetworks[ScalarStack] | None
) -> bool:
    """Return whether the rows of a device class suffice; to fine-tune, one measurement does."""
    measured = rows[quantity.column].notna().to_numpy(bool)
    if start is not None:
        return bool(measured.any())
    return len(rows) > 0 and cv.leaves_enough(folds_by_split(rows), measured)


def _can_train_any(solo: pd.DataFrame, quantity: Quantity) -> bool:
    return any(
        can_train(solo[solo["device_class"] == name], quantity, None) for name in DEVICE_CLASSES
    )


def _forecast_unmeasured(
    solo: pd.DataFrame, quantity: Quantity, predictor: torch.nn.Module
) -> pd.DataFrame:
    """Return forecasts of rows on a device class without measurements of the quantity."""
    with torch.no_grad():
        quantiles = predictor(torch.tensor(feature_matrix(solo, "full")).float()).double().numpy()
    parts = []
    for split, folds in folds_by_split(solo).items():
        part = solo[FORECAST_KEY].assign(
            split=split, features="full", fold=folds, measured=float("nan")
        )
        part[QUANTILES] = quantiles
        part["in_domain"] = False
        part["reason"] = f"{quantity.name} was never measured on such a device"
        parts.append(part)
    return pd.concat(parts)


def _sort_forecasts(solo: pd.DataFrame, forecasts: pd.DataFrame) -> pd.DataFrame:
    """Sort forecasts by feature set and split, then in the order of the rows of ``solo``."""
    position = pd.Series(range(len(solo)), index=solo.index)
    rows = forecasts.assign(row=position[forecasts.index].to_numpy())
    rows = rows.sort_values(["features", "split", "row"], ascending=[False, False, True])
    return rows.drop(columns="row").reset_index(drop=True)


def main(argv: list[str] | None = None) -> None:
    """Run the stage from the command line."""
    parser = argparse.ArgumentParser(description="DVC stage: features -> one solo predictor")
    parser.add_argument("predictor", choices=sorted(solo_quantities()))
    parser.add_argument("--features", type=Path, required=True, help="folder of featurize")
    parser.add_argument("--target", type=Path, required=True, help="folder to write")
    parser.add_argument("--pretrained", type=Path, help="folder of networks to fine-tune")
    args = parser.parse_args(argv)
    quantity, settings = QUANTITIES[args.predictor], read_settings(args.predictor)
    solo = read_table(args.features / "solo.parquet")
    pretrained = read_pretrained(args.pretrained)
    files = {} if pretrained is None else pretrained.networks(args.predictor)
    starts = {name: read_scalar_networks(path) for name, path in files.items()}
    if quantity.is_optional and not starts and not _can_train_any(solo, quantity):
        reason = str(_too_few_rows(solo, quantity))
        replace_folder(args.target, OUTPUT_NAMES, lambda folder: write_untrained(folder, reason))
        sys.stderr.write(f"{quantity.name} is not predicted: {reason}\n")
        return
    train(solo, quantity, settings, starts).write(args.target)


if __name__ == "__main__":
    run_stage(main)
