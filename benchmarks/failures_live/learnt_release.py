"""Placement release for the jobs and failures of benchmarks/failures_live."""

from __future__ import annotations

from pathlib import Path

from benchmarks.failures_live.policies import REPAIR_S
from benchmarks.failures_live.trace import (
    EVERY_S,
    HISTORY_DAYS,
    JOBS,
    LONGEST_S,
    MODEL_DAY_S,
    MTBF_DAYS,
    MTTR_DAYS,
    NODES,
    RATE_SPREAD,
    SHORTEST_S,
)
from presage.placement.core.batches import HOUR_S, BatchSettings
from presage.placement.stage.train_placement import PlacementSettings, train_placement

# Live clusters have fewer devices while nodes are down.
SETTINGS = PlacementSettings(
    gpus=tuple(range(3, NODES + 1)), trained_gpus=(NODES,), jobs_per_gpu=JOBS / NODES, exponent=0.5,
    patience=1.0, labelled=1500, validated=1500, evaluated=200,
)  # fmt: skip
WORLD = BatchSettings(
    job_gpus=(1,),
    runtime_h=(SHORTEST_S + LONGEST_S) / 2 / HOUR_S,
    runtime_spread=0.4,
    mtbf_h=MTBF_DAYS * MODEL_DAY_S / HOUR_S,
    rate_spread=RATE_SPREAD,
    mttr_h=(MTTR_DAYS * MODEL_DAY_S + REPAIR_S) / HOUR_S,
    arrivals_per_h=HOUR_S / EVERY_S,
    estimate_h=HISTORY_DAYS * MODEL_DAY_S / HOUR_S,
)


def train_release(folder: Path) -> None:
    """Train the release, if the folder has none."""
    if not (folder / "release.json").is_file():
        folder.mkdir(parents=True, exist_ok=True)
        train_placement(SETTINGS, folder, WORLD)
