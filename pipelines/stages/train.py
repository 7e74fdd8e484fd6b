"""DVC stage: features -> the predictor of one solo quantity."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
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
from presage.features.quantities.registry import QUANTITIES, solo_quantities
from presage.models.calibration.margins import ByLevel
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
from presage.models.training.splits import folds_by_split
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
from presage.pipelines.stages.stage import read_table, replace_folder, run_stage
from presage.system.files.atomic_file import write_atomically

OUTPUT_NAMES = (
    "model.onnx", "strangers.json", "forecasts.parquet", *(f"{name}.npz" for name in DEVICE_CLASSES)
)  # fmt: skip


@dataclass(frozen=True)
class TrainedPredictor:
    """What a predictor's stage leaves.

    Attributes
    ----------
    forecasts : DataFrame
        Out-of-fold, of every row, by both splits and feature sets.
    onnx : bytes
        The predictor to ship.
    learnt : mapping of str to Learnt
        By class of devices, what was learnt here.
    out_of_domain_margins : mapping of str to mapping of float to float
        By class of devices and level, what an interval's ends are moved further where a job is
        out of domain: in logarithms of a scale, in log-odds of a fraction.
    """

    forecasts: pd.DataFrame
    onnx: bytes
    learnt: Mapping[str, TrainedNetworks[Any]]
    out_of_domain_margins: Mapping[str, ByLevel]

    def write(self, target: Path) -> None:
        """Write what later stages read, as one folder: what it says hangs together."""
        replace_folder(target, OUTPUT_NAMES, self._write)

    def _write(self, folder: Path) -> None:
        margins = {
            name: {f"{level:g}": margin for level, margin in of_class.items()}
            for name, of_class in self.out_of_domain_margins.items()
        }
        text = json.dumps(margins, indent=2) + "\n"
        write_atomically(folder / "model.onnx", lambda path: path.write_bytes(self.onnx))
        write_atomically(folder / "strangers.json", lambda path: path.write_text(text))
        write_atomically(folder / "forecasts.parquet", self.forecasts.to_parquet)
        for name, learnt in self.learnt.items():
            write_atomically(folder / f"{name}.npz", partial(write_networks, learnt))


def make_torch_deterministic() -> None:
    """One thread, and equal seeds give equal bytes."""
    torch.set_num_threads(1)
    torch.set_deterministic_debug_mode("error")  # as use_deterministic_algorithms, but at once


def max_out_of_domain_margins(*known: Mapping[str, TrainedNetworks[Any]]) -> dict[str, ByLevel]:
    """Of every class of devices: the widest of those that are known of it."""
    out = {}
    for name in DEVICE_CLASSES:
        of_class = [learnt[name].margins.out_of_domain for learnt in known if name in learnt]
        out[name] = {
            level: max(margins[level] for margins in of_class or [cv.ASSUMED_MARGINS])
            for level in cv.ASSUMED_MARGINS
        }
    return out


def train(
    solo: pd.DataFrame,
    quantity: Quantity,
    settings: Settings,
    starts: Mapping[str, TrainedNetworks[ScalarStack]],
) -> TrainedPredictor:
    """Fit, judge and export a predictor: networks for each class of devices.

    A class that nobody measured, and a card that nobody did, keep the networks that it ``starts``
    with. None has seen the held-out fold: what the gate measures is what is served.

    Raises
    ------
    TrainingError
        Too few rows of any class measure the quantity, and there are no networks to start with.
    """
    make_torch_deterministic()
    learnt, tables = {}, []
    predictors: dict[str, nn.Module] = {
        name: ScalarPredictor(one.stack, quantity, one.margins) for name, one in starts.items()
    }
    for name in DEVICE_CLASSES:
        rows, start = solo[solo["device_class"] == name], starts.get(name)
        if not can_train(rows, quantity, start):
            continue
        learnt[name], table = fit_device_class(rows, quantity, settings, start)
        tables.append(table)
        here: nn.Module = ScalarPredictor(learnt[name].stack, quantity, learnt[name].margins)
        if name in starts:
            known = device_identities(rows[rows[quantity.column].notna()])
            here = MeasuredDeviceRouter(here, predictors[name], known, IDENTITY_COLUMNS, raw=True)
        predictors[name] = here
    if not predictors:
        measured = int(solo[quantity.column].notna().sum())
        raise TrainingError(
            f"{measured} of {len(solo)} rows hold {quantity.column}, "
            "too few to learn from: whichever job or family is left out, "
            f"{cv.MIN_CALIBRATION_ROWS} must remain; "
            "measure more jobs (`presage profile --budget ...`)"
        )
    predictor = route_by_device_class(
        predictors, scale=quantity.is_scale, column=COMPUTE_CAPABILITY
    )
    tables.append(
        _forecast_unmeasured(solo[~solo["device_class"].isin(learnt)], quantity, predictor)
    )
    example = torch.tensor(feature_matrix(solo.head(2), "full")).float()
    onnx = export(predictor, {"features": (example, ("rows",))})
    forecasts = _sort_forecasts(solo, pd.concat(tables))
    return TrainedPredictor(forecasts, onnx, learnt, max_out_of_domain_margins(starts, learnt))


def can_train(
    rows: pd.DataFrame, quantity: Quantity, start: TrainedNetworks[ScalarStack] | None
) -> bool:
    """Whether these rows of a class of devices are enough: to go on, one that was measured is."""
    measured = rows[quantity.column].notna().to_numpy(bool)
    if start is not None:
        return bool(measured.any())
    return len(rows) > 0 and cv.leaves_enough(folds_by_split(rows), measured)


def _forecast_unmeasured(
    solo: pd.DataFrame, quantity: Quantity, predictor: torch.nn.Module
) -> pd.DataFrame:
    """Return forecasts of rows on a class of devices without measurements of the quantity."""
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
    """Split by split and set by set, each in the order of ``solo``'s rows."""
    position = pd.Series(range(len(solo)), index=solo.index)
    rows = forecasts.assign(row=position[forecasts.index].to_numpy())
    rows = rows.sort_values(["features", "split", "row"], ascending=[False, False, True])
    return rows.drop(columns="row").reset_index(drop=True)


def main(argv: list[str] | None = None) -> None:
    """Command line of the stage."""
    parser = argparse.ArgumentParser(description="DVC stage: features -> one solo predictor")
    parser.add_argument("predictor", choices=sorted(solo_quantities()))
    parser.add_argument("--features", type=Path, required=True, help="folder of featurize")
    parser.add_argument("--target", type=Path, required=True, help="folder to write")
    parser.add_argument("--pretrained", type=Path, help="folder of networks to go on from")
    args = parser.parse_args(argv)
    settings = read_settings(args.predictor)
    solo = read_table(args.features / "solo.parquet")
    pretrained = read_pretrained(args.pretrained)
    files = {} if pretrained is None else pretrained.networks(args.predictor)
    starts = {name: read_scalar_networks(path) for name, path in files.items()}
    train(solo, QUANTITIES[args.predictor], settings, starts).write(args.target)


if __name__ == "__main__":
    run_stage(main)
