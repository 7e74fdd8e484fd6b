"""Picture of the page: reliability by decile, and the hazard after a repair."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from presage.features.hazard.hazard_model import HazardModel
from presage.models.hazard.hazard_score import Bin
from presage.models.hazard.unit_days import UnitDays

EDGES_DAYS = (0, 1, 2, 4, 8, 16, 32, 64, 128, 349)


def draw(bins: Sequence[Bin], model: HazardModel, rows: UnitDays, path: Path) -> None:
    """Write the picture of the test days."""
    figure = Figure(figsize=(9, 4), dpi=120, layout="constrained")
    left, right = figure.subplots(1, 2)
    predicted = np.array([one.predicted for one in bins]) * 100
    observed = np.array([one.observed for one in bins]) * 100
    around = np.array([[one.low, one.high] for one in bins]).T * 100
    left.errorbar(
        predicted, observed, [observed - around[0], around[1] - observed],
        fmt="o", capsize=2, label="deciles of node-days, 95 % intervals",
    )  # fmt: skip
    left.plot([0.1, 2], [0.1, 2], color="grey", linewidth=0.8)
    left.set(
        xscale="log", yscale="log", xlabel="predicted to fail within a day (%)",
        ylabel="failed within a day (%)", title="Reliability after day 200",
    )  # fmt: skip
    left.legend(loc="upper left", fontsize=8)
    chance = model.hazards(rows.decayed_repairs(model.half_lives_days), 86_400.0).probability
    since = np.array([ages.min() if len(ages) else np.inf for ages in rows.repairs])
    middle, seen, expected, error = [], [], [], []
    for low, high in pairwise(EDGES_DAYS):
        there = (since >= low) & (since < high)
        rate = rows.fails[there].mean()
        middle.append((low + high) / 2)
        seen.append(rate * 100)
        expected.append(chance[there].mean() * 100)
        error.append(196 * np.sqrt(rate * (1 - rate) / there.sum()))
    right.errorbar(middle, seen, error, fmt="o", capsize=2, label="observed")
    right.plot(middle, expected, label="predicted")
    never = ~np.isfinite(since)
    right.axhline(
        rows.fails[never].mean() * 100, color="grey", linewidth=0.8, label="never failed: observed"
    )
    right.set(
        xscale="log", yscale="log", xlabel="days since the last repair",
        ylabel="failed within a day (%)", title="Hazard after a repair, after day 200",
    )  # fmt: skip
    right.legend(fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Software": None})
