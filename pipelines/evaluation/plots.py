"""Pictures of the evaluation's `dvc plots` tables, for MLflow's page."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd

from presage.features.quantities.quantity_registry import QUANTITIES
from presage.pipelines.trained_quantities import LOSS

GROUPS = ("family", "device")
MOST_BARS = 40  # per picture: the groups with the largest error
_INCHES, _DOTS_PER_INCH = 5.0, 90


@contextmanager
def pictures(plots: Path) -> Iterator[Path | None]:
    """Yield a temporary folder with the tables and a picture of each; None without tables."""
    if not plots.is_dir():
        yield None
        return
    with TemporaryDirectory() as folder:
        target = Path(folder) / "plots"
        shutil.copytree(plots, target)
        for name in _plotted_quantities(plots):
            _draw_predictor(plots, name, target / f"{name}.png")
        _draw_calibration(pd.read_csv(plots / "calibration.csv"), target / "calibration.png")
        yield target


def _draw_predictor(plots: Path, name: str, target: Path) -> None:
    """Draw predicted against measured values, and the error by family and by device."""
    figure, (predictions, *by_group, losses) = _panels(2 + len(GROUPS))
    rows = pd.read_csv(plots / f"{name}.csv")
    for split, part in rows.groupby("split"):
        predictions.scatter(part["measured"], part["predicted"], s=4, label=f"{split} left out")
    scale = "log" if QUANTITIES[name].is_scale else "linear"
    predictions.set(title=name, xlabel="measured", ylabel="predicted", xscale=scale, yscale=scale)
    ends = [rows["measured"].min(), rows["measured"].max()]
    predictions.plot(ends, ends, color="grey", linewidth=0.5)
    predictions.legend()
    for group, panel in zip(GROUPS, by_group, strict=True):
        errors = pd.read_csv(plots / f"error_by_{group}" / f"{name}.csv")
        errors = errors[errors["split"] == "job"].nlargest(MOST_BARS, "median_ape")
        panel.barh(errors[group].astype(str), errors["median_ape"])
        panel.set(title=f"median error by {group}, job left out", xlabel="%")
        panel.tick_params(axis="y", labelsize=6)
    _draw_losses(plots / LOSS / f"{name}.csv", losses)
    figure.savefig(target)


def _draw_losses(file: Path, panel: Any) -> None:
    """Draw the loss on training and on validation rows by step; nothing without a file."""
    rows = pd.read_csv(file) if file.is_file() else pd.DataFrame(columns=["split"])
    for number, (split, part) in enumerate(rows.groupby("split", sort=False)):
        means = part.groupby("step")[["training", "validation"]].mean()
        panel.plot(means["training"], color=f"C{number}", linestyle="dotted")
        panel.plot(means["validation"], color=f"C{number}", label=f"{split} left out")
    panel.set(title="loss on training (dotted) and validation rows", xlabel="step", yscale="log")
    if len(rows):
        panel.legend()


def _draw_calibration(rows: pd.DataFrame, target: Path) -> None:
    """Draw the observed share of measured values below each quantile against the promised."""
    names = list(dict.fromkeys(rows["predictor"]))
    figure, panels = _panels(len(names))
    for name, panel in zip(names, panels, strict=True):
        for split, part in rows[rows["predictor"] == name].groupby("split"):
            panel.plot(part["promised"], part["observed"], marker="o", label=f"{split} left out")
        panel.plot([0, 1], [0, 1], color="grey", linewidth=0.5)
        panel.set(title=name, xlabel="promised", ylabel="observed")
        panel.legend()
    figure.savefig(target)


def _plotted_quantities(plots: Path) -> list[str]:
    """Return the quantities that have rows: one may be untrained, or newer than the evaluation."""
    files = {name: plots / f"{name}.csv" for name in QUANTITIES}
    return [n for n, file in files.items() if file.is_file() and not pd.read_csv(file).empty]


def _panels(count: int) -> tuple[Any, Any]:
    """Return a figure with panels in a row; without pyplot, which needs a display."""
    from matplotlib.figure import Figure

    size = (_INCHES * count, _INCHES)
    figure = Figure(figsize=size, dpi=_DOTS_PER_INCH, layout="constrained")
    return figure, figure.subplots(1, count)
