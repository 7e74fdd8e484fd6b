"""Small synthetic forecast tables in the format of the training stages."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from presage.features.quantities.quantity_registry import required_quantities
from presage.models.calibration.error_metrics import point_metrics
from presage.models.training.baselines import BASELINES
from presage.pipelines.stages.evaluate import Metrics, score_forecasts

SCALE = {
    "compute_utilization": 0.5,
    "memory": 4e8,
    "step_time": 0.05,
    "interference": 2.0,
}
FAMILIES = ("gpt", "mlp", "resnet")


def row(
    measured: float, predicted: float, *, half_width: float = 0.2, **said: Any
) -> dict[str, Any]:
    """Return a row whose 80 % interval is ``half_width`` times its median to either side."""
    wide = 1.5 * half_width
    return {
        "job_id": "mlp/a", "family": "mlp", "device_kind": "cpu-2", "device_class": "processor",
        "machine": "m", "campaign": "c", "split": "job", "features": "full", "fold": 0,
        "measured": measured,
        "q0.05": predicted * (1 - wide), "q0.1": predicted * (1 - half_width), "q0.5": predicted,
        "q0.9": predicted * (1 + half_width), "q0.95": predicted * (1 + wide),
    } | said  # fmt: skip


def table(rows: Iterable[dict[str, Any]]) -> pd.DataFrame:
    return pd.DataFrame(list(rows))


def forecasts(jobs: int = 30, *, domain: bool = True) -> dict[str, pd.DataFrame]:
    """Return tables of four predictors, two splits, both domains, two kinds of devices."""
    random = np.random.default_rng(0)
    told = {}
    for predictor in required_quantities():
        rows = []
        for i in range(jobs):
            family = FAMILIES[i % len(FAMILIES)]
            measured = SCALE[predictor] * float(random.uniform(0.6, 1.8))
            who: dict[str, Any] = {
                "job_id": f"{family}/w{i}/b8",
                "family": family,
                "device_kind": "h100" if i % 2 else "cpu-2",
                "device_class": "gpu" if i % 2 else "processor",
                "campaign": "spring",
                "machine": f"host-{i % 2}",
            }
            if predictor == "interference":
                pair = f"{who['job_id']} + vgg/w8/b1 @ {who['device_kind']}"
                who |= {
                    "colocation": f"{pair} in spring on {who['machine']}",
                    "member": 0,
                    "members": 2,
                }
            for split, spread in (("job", 0.1), ("family", 0.3)):
                predicted = measured * float(np.exp(random.normal(0, spread)))
                strange = split == "family" and family == "gpt"
                said = {"split": split, "in_domain": not strange}
                said["reason"] = "no other family has <b>attention</b>: 41 %" if strange else ""
                for features in ("full", "published"):
                    if predictor == "interference" and features == "published":
                        continue
                    rows.append(
                        row(measured, predicted, half_width=1.3 * spread, features=features)
                        | who
                        | said
                    )
        told[predictor] = table(rows)
        if not domain:
            told[predictor] = told[predictor].drop(columns=["in_domain", "reason"])
    return told


def metrics_of(told: dict[str, pd.DataFrame]) -> Metrics:
    """Return metrics as the stage computes them, with cheap baselines."""
    metrics: Metrics = {}
    for predictor, rows in told.items():
        scores = score_forecasts(rows)
        for split, models in scores.items():
            y = rows.loc[(rows["split"] == split) & (rows["features"] == "full"), "measured"]
            for i, name in enumerate(BASELINES):
                models[name] = point_metrics(y.to_numpy(), y.to_numpy() * (1.1 + 0.1 * i))
        metrics[predictor] = scores
    return metrics


def store(told: dict[str, pd.DataFrame], models: Path) -> None:
    """Write the tables to the folders of the stages."""
    for predictor, rows in told.items():
        (models / predictor).mkdir(parents=True, exist_ok=True)
        rows.to_parquet(models / predictor / "forecasts.parquet")
