"""Accuracy of the hazard model on InfiniteHBD's trace, written to docs/benchmarks/hazard.md.

Run ``python -m benchmarks.hazard`` from the repository root; it takes half a minute. The trace is
that of PRESAGE_DATASETS (``../shared/datasets``), folder ``faults``.
"""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import chi2

from benchmarks.hazard.alternatives import COLUMNS, feature_table, score_alternative
from benchmarks.hazard.page import page
from benchmarks.hazard.picture import draw
from benchmarks.markdown import write_page
from presage.features.hazard.hazard_model import DAY_S, HazardModel
from presage.models.hazard.hazard_fit import HazardSettings
from presage.models.hazard.hazard_score import Bin, log_losses
from presage.models.hazard.unit_days import UnitDays, make_unit_days
from presage.pipelines.hazard.fit_hazard import fit, read_history
from presage.pipelines.stages.stage import read_params

PAGE = Path("docs/benchmarks/hazard.md")
PICTURE = Path("docs/pictures/hazard_calibration.png")
DATASETS = Path(os.environ.get("PRESAGE_DATASETS", "../shared/datasets"))
HORIZONS_DAYS = (1, 3, 7, 14, 30)


def main() -> None:
    """Fit the model, score it and its alternatives, and write the page."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.hazard",
        description=(__doc__ or "").split("\n", maxsplit=1)[0],
    )
    parser.parse_args()
    trace = read_history(DATASETS / "faults")
    if trace is None:
        sys.exit(f"skipped: {DATASETS / 'faults'} has no fault trace; set PRESAGE_DATASETS")
    settings = read_params("hazard", HazardSettings)
    settings = replace(settings, half_lives_days=tuple(map(tuple, settings.half_lives_days)))
    assert settings.until_day is not None
    model, metrics = fit(trace, settings)
    training = make_unit_days(trace.outages, trace.nodes, from_day=0, until_day=settings.until_day)
    test = make_unit_days(
        trace.outages, trace.nodes, from_day=settings.until_day, until_day=trace.days
    )
    bins = [Bin(**one) for one in metrics["test"]["deciles"]]
    fold = np.random.default_rng(settings.seed).permutation(trace.nodes) % settings.folds
    tables = (training, feature_table(trace, training)), (test, feature_table(trace, test))
    losses = metrics["cross_validation"]
    values: dict[str, Any] = {
        "until": settings.until_day,
        "loss": metrics["test"]["log_loss"],
        "constant": metrics["test"]["log_loss_constant"],
        "top": metrics["test"]["share_in_top_5_percent"],
        "node_days": len(test),
        "failures": metrics["test"]["failures"],
        "bins": bins,
        "p": chi_square_p(bins),
        "losses": losses,
        "cv": min(losses.values()),
        "cv_constant": losses["constant"],
        "scores": {
            name: score_alternative(columns, *tables, fold[training.unit])
            for name, columns in COLUMNS.items()
        },
        "horizon_losses": [horizon(model, training, test, days) for days in HORIZONS_DAYS],
        "early": training.fails.mean(),
        "late": test.fails.mean(),
    }
    draw(bins, model, test, PICTURE)
    write_page(PAGE, page(values, model, f"../pictures/{PICTURE.name}"))


def chi_square_p(bins: list[Bin]) -> float:
    """Return the p-value of the hypothesis that the predicted probabilities are right."""
    off = [
        (one.rows * (one.observed - one.predicted)) ** 2
        / (one.rows * one.predicted * (1 - one.predicted))
        for one in bins
    ]
    return float(chi2.sf(sum(off), len(bins)))


def horizon(
    model: HazardModel, training: UnitDays, test: UnitDays, days: int
) -> tuple[int, float, float]:
    """Return a time in days, and the log losses of a constant rate and of the model for it."""
    rows = test.rows(test.day + days <= int(test.day.max()) + 1)
    fails = rows.next_failure_days <= days
    chance = model.hazards(rows.decayed_repairs(model.half_lives_days), days * DAY_S).probability
    rate = -np.log1p(-training.fails.mean())
    constant = np.full(len(rows), -np.expm1(-rate * days))
    return days, float(log_losses(fails, constant).mean()), float(log_losses(fails, chance).mean())


if __name__ == "__main__":
    main()
