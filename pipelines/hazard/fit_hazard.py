"""DVC stage: fault history of a cluster -> hazard model and its scores.

Without a history the model that comes with Presage is used: it was fitted by the same command to
InfiniteHBD's trace, with ``--pretrained`` and ``--target`` reversed::

    python -m presage.pipelines.hazard.fit_hazard --faults FOLDER --target data/pretrained/hazard
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from presage.errors import ConfigError, TableError
from presage.features.hazard.fault_trace import FaultTrace, parse_fault_trace, read_text
from presage.features.hazard.hazard_model import DAY_S, HazardModel, parse_hazard_model
from presage.models.hazard.hazard_fit import HazardSettings, cross_validate, fit_hazard_model
from presage.models.hazard.hazard_score import calibration_bins, log_losses, share_in_top
from presage.models.hazard.unit_days import UnitDays, make_unit_days
from presage.pipelines.stages.stage import read_params, replace_folder, run_stage

MODEL, METRICS = "hazard.json", "metrics.json"
HISTORIES = ("fault_trace.json.gz", "fault_trace.json")
TOP = 0.05  # part of the node-days whose share of the failures is reported


def read_history(folder: Path) -> FaultTrace | None:
    """Read the fault history of a folder; None if it has none.

    Raises
    ------
    TableError
        The file is not a fault trace.
    """
    path = next((folder / name for name in HISTORIES if (folder / name).is_file()), None)
    if path is None:
        return None
    try:
        return parse_fault_trace(read_text(path))
    except TableError as error:
        text = str(error)
        raise TableError(text if text.startswith(str(path)) else f"{path}: {text}") from None


def fit(trace: FaultTrace, settings: HazardSettings) -> tuple[HazardModel, dict[str, Any]]:
    """Return the model of the days before ``until_day`` and its scores before and after."""
    until_day = trace.days if settings.until_day is None else min(settings.until_day, trace.days)
    training = make_unit_days(trace.outages, trace.nodes, from_day=0, until_day=until_day)
    model = fit_hazard_model(training, settings)
    losses = cross_validate(training, settings)
    metrics: dict[str, Any] = {
        "cross_validation": {
            ",".join(f"{days:g}" for days in one) or "constant": loss
            for one, loss in losses.items()
        },
        "training": score(model, training, training),
    }
    if until_day < trace.days:
        test = make_unit_days(trace.outages, trace.nodes, from_day=until_day, until_day=trace.days)
        metrics["test"] = score(model, test, training)
    return model, metrics


def score(model: HazardModel, rows: UnitDays, training: UnitDays) -> dict[str, Any]:
    """Return the scores of one-day probabilities, with those of the constant training rate."""
    chance = model.hazards(rows.decayed_repairs(model.half_lives_days), DAY_S).probability
    constant = np.full(len(rows), training.fails.mean())
    return {
        "node_days": len(rows),
        "failures": int(rows.fails.sum()),
        "log_loss": float(log_losses(rows.fails, chance).mean()),
        "log_loss_constant": float(log_losses(rows.fails, constant).mean()),
        "share_in_top_5_percent": share_in_top(rows.fails, chance, TOP),
        "deciles": [one._asdict() for one in calibration_bins(rows.fails, chance)],
    }


def write(target: Path, model: HazardModel, metrics: dict[str, Any]) -> None:
    """Replace the target folder by the model and its scores."""

    def write_files(folder: Path) -> None:
        (folder / MODEL).write_text(json.dumps(model.as_json(), indent=1) + "\n")
        (folder / METRICS).write_text(json.dumps(metrics, indent=1) + "\n")

    replace_folder(target, (MODEL, METRICS), write_files)


def read_model(folder: Path) -> tuple[HazardModel, dict[str, Any]]:
    """Read the model and the scores of a folder.

    Raises
    ------
    ConfigError
        A file is missing or corrupt.
    """
    try:
        text, metrics = (folder / MODEL).read_text(), json.loads((folder / METRICS).read_text())
    except OSError as error:
        raise ConfigError(f"{folder}: {error.strerror}; restore it with git") from None
    except ValueError as error:
        raise ConfigError(f"{folder / METRICS}: is not JSON ({error})") from None
    return parse_hazard_model(text, source=str(folder / MODEL)), metrics


def main(argv: list[str] | None = None) -> None:
    """Run the stage from the command line."""
    parser = argparse.ArgumentParser(description="DVC stage: fault history -> hazard model")
    parser.add_argument("--faults", type=Path, required=True, help="folder of the fault history")
    parser.add_argument("--target", type=Path, required=True, help="folder to write")
    parser.add_argument("--pretrained", type=Path, help="folder of the model to use without one")
    args = parser.parse_args(argv)
    trace = read_history(args.faults)
    if trace is not None:
        settings = read_params("hazard", HazardSettings)
        half_lives = tuple(tuple(one) for one in settings.half_lives_days)
        model, metrics = fit(trace, replace(settings, half_lives_days=half_lives))
        source = f"fitted to {args.faults}"
    elif args.pretrained is not None:
        model, metrics = read_model(args.pretrained)
        source = f"no fault history in {args.faults}: copied from {args.pretrained}"
    else:
        raise TableError(f"{args.faults}: has no {HISTORIES[1]}; put a fault history there")
    write(args.target, model, metrics)
    print(f"hazard model in {args.target}, {source}")  # noqa: T201


if __name__ == "__main__":
    run_stage(main)
