"""Quantities that a training has a model of: all but optional ones that lack rows."""

from __future__ import annotations

import json
from pathlib import Path

from presage.features.quantities.quantity import Quantity
from presage.features.quantities.quantity_registry import QUANTITIES
from presage.system.files.atomic_file import write_atomically

FORECASTS = "forecasts.parquet"  # out-of-fold, of every trained predictor
LOSS_CURVES = "loss_curves.csv"  # of its networks; a text, so that `dvc diff` shows it
LOSS = "loss"  # folder of the loss curves, among the plots of evaluate
UNTRAINED = "untrained.json"  # the only file of a predictor's folder without networks


def write_untrained(folder: Path, reason: str) -> None:
    """Write the file that marks an optional quantity as untrained, with the reason."""
    text = json.dumps({"reason": reason}) + "\n"
    write_atomically(folder / UNTRAINED, lambda path: path.write_text(text))


def trained_quantities(models: Path) -> dict[str, Quantity]:
    """Return the registered quantities without optional ones that have no model, by name."""
    return {
        name: quantity
        for name, quantity in QUANTITIES.items()
        if not quantity.is_optional or (models / name / FORECASTS).is_file()
    }
