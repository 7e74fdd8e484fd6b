"""Contribution of each part of a step time's forecast, written to docs/benchmarks/ablation.md.

Run ``python -m benchmarks.predictors.ablation data/.pretraining/features`` after `make pretrained`:
a quarter of an hour on one core. Training steps of timm's models on an RTX 3090; five folds by
model, and by family; so many training rows of the other folds, drawn by chance; one network for
each fold.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.markdown import write_page
from presage.features.columns.schema import COMMON, columns
from presage.features.device.device_class import GPU
from presage.features.quantities.quantity import Quantity
from presage.features.quantities.quantity_registry import QUANTITIES
from presage.models.training.fit import (
    LEVELS,
    FitConfig,
    ScalarStack,
    fit_scalar,
    predict_quantiles,
    select_inputs,
    transform_features,
)
from presage.models.training.splits import FOLDS, job_folds
from presage.models.training.torch_settings import make_torch_deterministic
from presage.pipelines.stages.feature_table import feature_matrix
from presage.pipelines.stages.fit_settings import Settings, read_settings

PAGE = Path("docs/benchmarks/ablation.md")
TARGET = QUANTITIES["step_time"]
ROWS = (30, 100, 300, 1000, None)  # None: all of the other folds
SIZES = (8, 16, 32, 64, 128)
SPLITS = {"model": "unseen model", "family": "unseen family"}
_ROOFLINE = (
    "roofline_s", "compute_s", "memory_s", "overhead_s", "compute_bound_share", "overhead_share",
)  # fmt: skip


@dataclass(frozen=True)
class Variant:
    """Inputs and target of a network.

    ``before`` is the network to start from. Without ``adds_up`` time shares are inputs only.
    """

    name: str
    target: Quantity
    feature_set: str
    before: ScalarStack | None = None
    adds_up: bool = True


def variants(before: ScalarStack) -> list[Variant]:
    """Return the variants; each adds a part to the one before it."""
    common = tuple(column.name for column in COMMON)
    blind = tuple(name for name in common if name not in _ROOFLINE)
    unaided = replace(TARGET, prior=None)
    published = replace(unaided, inputs=tuple(columns("published")))
    return [
        Variant("published features", published, "published"),
        Variant("whole-job features", replace(unaided, inputs=blind), "full"),
        Variant("+ factor over the roofline", replace(TARGET, inputs=common), "full"),
        Variant("+ operator time shares", TARGET, "full", adds_up=False),
        Variant("+ their sum, with a factor each (served)", TARGET, "full"),
        Variant("+ pre-training", TARGET, "full", before),
    ]


def errors(
    solo: pd.DataFrame, variant: Variant, folds: np.ndarray, rows: int | None, config: Config
) -> np.ndarray:
    """Return percentage errors of all rows by networks trained on ``rows`` rows of other folds."""
    full = feature_matrix(solo, "full")
    x = transform_features(feature_matrix(solo, variant.feature_set), variant.feature_set)
    measured = solo[TARGET.column].to_numpy(np.float64)
    y = variant.target.to_learnt(measured, full)
    inputs = select_inputs(variant.target.inputs, variant.feature_set)
    inputs = inputs if variant.adds_up else replace(inputs, components=())
    median = np.empty(len(solo))
    for fold in range(FOLDS):
        held_out = folds == fold
        seen = np.random.default_rng(fold).permutation(np.flatnonzero(~held_out))[:rows]
        settings = config(len(seen), variant)
        weights = np.ones((settings.ensemble, len(seen)))
        stack = fit_scalar(x[seen], y[seen], weights, inputs, settings, start=variant.before)
        predicted = predict_quantiles(stack, x[held_out]).mean(axis=0)
        forecast = variant.target.to_measured(predicted, full[held_out])
        median[held_out] = forecast[:, LEVELS.index(0.5)]
    return np.asarray(100 * np.abs(median / measured - 1))


class Config:
    """Settings by rows as params.yaml has them, one network each, or of another size."""

    def __init__(self, settings: Settings, hidden: int | None = None) -> None:
        self._settings, self._hidden = settings, hidden

    def __call__(self, rows: int, variant: Variant) -> FitConfig:
        config = self._settings.select(rows, is_fine_tuning=variant.before is not None)
        return replace(config, ensemble=1, hidden=self._hidden or config.hidden)


def taught_elsewhere(solo: pd.DataFrame, here: np.ndarray, settings: Settings) -> ScalarStack:
    """Return a network trained on the GPU rows that are not of this table."""
    others = solo[~here & (solo["device_class"] == GPU) & solo[TARGET.column].notna()]
    full = feature_matrix(others, "full")
    y = TARGET.to_learnt(others[TARGET.column].to_numpy(np.float64), full)
    config = replace(settings.select(len(others), is_fine_tuning=False), ensemble=1)
    return fit_scalar(
        transform_features(full, "full"), y, np.ones((1, len(y))),
        select_inputs(TARGET.inputs, "full"), config,
    )  # fmt: skip


def format_errors(found: np.ndarray) -> str:
    return f"{found.mean():.1f} / {np.median(found):.1f}"


def main() -> None:
    make_torch_deterministic()
    settings = read_settings("step_time")
    solo = pd.read_parquet(Path(sys.argv[1]) / "solo.parquet")
    here = ((solo["device_kind"] == "rtx-3090") & (solo["full.trains"] == 1)).to_numpy(
        bool, copy=True
    )
    here &= solo[TARGET.column].notna().to_numpy(bool)
    before = taught_elsewhere(solo, here, settings)
    rows = solo[here].reset_index(drop=True)
    lines = [
        "# Ablation of the step-time predictor",
        "",
        "This page has the contribution of each part of a step-time prediction. Written by",
        "`python -m benchmarks.predictors.ablation`. The data are training steps of timm's models"
        f" on an RTX 3090 ({len(rows):,} rows of {rows['model'].nunique():,} models). The figures",
        "are mean / median absolute percentage errors, with one network for each of five folds, by",
        "number of training rows. Pre-training uses the other GPU rows of the public tables:",
        "inference of these models, torchvision, Gavel, ParvaGPU, MISO and Pollux.",
    ]
    for column, split in SPLITS.items():
        folds = job_folds(list(rows[column]))
        lines += [
            "",
            f"## By number of training rows, {split}",
            "",
            "| variant | " + " | ".join(f"{n or 'all'} rows" for n in ROWS) + " |",
            "|---|" + "---:|" * len(ROWS),
        ]
        for variant in variants(before):
            sys.stderr.write(f"{split}: {variant.name}\n")
            cells = [format_errors(errors(rows, variant, folds, n, Config(settings))) for n in ROWS]
            lines.append(f"| {variant.name} | {' | '.join(cells)} |")
    lines += [
        "",
        "## By size of the network, served variant",
        "",
        "| hidden units | " + " | ".join(SPLITS.values()) + " | 300 rows, unseen model |",
        "|---:|---:|---:|---:|",
    ]
    served = variants(before)[4]
    for hidden in SIZES:
        sys.stderr.write(f"{hidden} hidden units\n")
        config = Config(settings, hidden)
        cells = [
            format_errors(errors(rows, served, job_folds(list(rows[column])), None, config))
            for column in SPLITS
        ]
        cells.append(
            format_errors(errors(rows, served, job_folds(list(rows["model"])), 300, config))
        )
        lines.append(f"| {hidden} | {' | '.join(cells)} |")
    write_page(PAGE, lines)


if __name__ == "__main__":
    main()
