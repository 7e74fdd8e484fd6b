"""Picture of the page: jobs and failures of a seed, and completion times by policy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from matplotlib.figure import Figure

from benchmarks.failures_live.outcome import Outcome
from benchmarks.failures_live.page import SeedRun
from benchmarks.failures_live.policies import POLICIES
from benchmarks.failures_live.trace import NODES, node_name

SHOWN = "least-failing"


def draw(runs: Sequence[SeedRun], path: Path) -> None:
    """Write the picture."""
    figure = Figure(figsize=(11, 6), dpi=110, layout="constrained")
    axes: Any = figure.subplot_mosaic(
        [["live", "bars"], ["simulated", "bars"]], width_ratios=[3, 1]
    )
    first = runs[0].policies[SHOWN]
    end_s = max(one.until_s for of in (first.live, first.simulated) for one in of.attempts)
    for name, outcome in (("live", first.live), ("simulated", first.simulated)):
        _timeline(axes[name], outcome, end_s)
        axes[name].set_title(f"{SHOWN}, seed {runs[0].seed}, {name}", fontsize=10)
    axes["simulated"].set_xlabel("seconds since the first submission")
    _bars(axes["bars"], runs)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Software": None})


def _timeline(axes: Any, outcome: Outcome, end_s: float) -> None:
    rows = {node_name(number): number for number in range(NODES)}
    for node, spans in outcome.outages.items():
        inside = [(at_s, min(until_s, end_s) - at_s) for at_s, until_s in spans if at_s < end_s]
        axes.broken_barh(inside, (rows[node] - 0.45, 0.9), color="lightgrey")
    for color, is_lost in (("tab:blue", False), ("tab:red", True)):
        for row in rows.values():
            bars = [
                (one.from_s, one.until_s - one.from_s)
                for one in outcome.attempts
                if one.is_lost == is_lost and rows[one.node] == row
            ]
            axes.broken_barh(bars, (row - 0.3, 0.6), facecolor=color, edgecolor="white")
    axes.set_yticks(list(rows.values()), list(rows))
    axes.set_xlim(0, end_s)
    axes.invert_yaxis()


def _bars(axes: Any, runs: Sequence[SeedRun]) -> None:
    for offset, side in ((-0.2, "live"), (0.2, "simulated")):
        values = [
            mean(getattr(run.policies[name], side).mean_jct_s for run in runs) for name in POLICIES
        ]
        axes.bar([i + offset for i in range(len(POLICIES))], values, 0.38, label=side)
    axes.set_xticks(range(len(POLICIES)), list(POLICIES), fontsize=8)
    axes.set_title("mean JCT of all seeds (s)", fontsize=10)
    axes.legend(fontsize=8)
    axes.text(
        0.5, -0.12, "grey: node down; red: lost attempt", transform=axes.transAxes, ha="center",
        fontsize=8,
    )  # fmt: skip
