"""Improvement by a few local runs over the pretrained release.

Run ``python -m benchmarks.predictors.local_runs data/.pretraining/features [LOCAL_CAMPAIGN]`` after
`make pretrained`; writes docs/benchmarks/local_runs.md. Minutes on one core.

Two questions. Of each GPU in the public tables: had pre-training never seen it, how wrong would
step times on it be, and how wrong once 10, 30, 100 runs of it were measured? Half of its models are
asked about, the runs are of the other half. And of a campaign of this machine, a processor like the
one whose campaigns come with Presage: how wrong with none, 10, 30, 100 of its jobs?
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd

from presage.features.device.device_class import GPU, PROCESSOR
from presage.features.quantities.quantity import Quantity
from presage.features.quantities.quantity_registry import QUANTITIES
from presage.models.networks.ensemble import combine_member_arrays
from presage.models.training.fit import (
    LEVELS,
    FitConfig,
    ScalarStack,
    fit_scalar,
    predict_quantiles,
    select_inputs,
    transform_features,
)
from presage.pipelines.stages.feature_table import feature_matrix
from presage.pipelines.stages.featurize import featurize
from presage.pipelines.stages.fit_settings import Settings, read_settings
from presage.pipelines.stages.train import make_torch_deterministic

PAGE = Path("docs/benchmarks/local_runs.md")
COMMITTED = [Path("data/profiles/cpu-2"), Path("data/profiles/cpu-2-zoo")]
RUNS = (0, 10, 30, 100)
LEAST_ROWS = 50  # of a GPU that is left out
SEEDS = (0, 1, 2)
TEST_JOBS = 30  # jobs of the local campaign that are asked about
WHAT = {"step_time": "step time", "memory": "memory", "compute_utilization": "utilization"}


@dataclass(frozen=True)
class Rows:
    """Rows of one target: transformed features, what is learnt, and the rows themselves."""

    table: pd.DataFrame
    x: np.ndarray
    y: np.ndarray

    def of(self, keep: np.ndarray) -> Rows:
        at = np.arange(len(self.y))[keep]
        return Rows(self.table.iloc[at], self.x[at], self.y[at])


def rows_of(solo: pd.DataFrame, target: Quantity) -> Rows:
    """Return the rows with a measured target."""
    solo = solo[solo[target.column].notna()]
    features = feature_matrix(solo, "full")
    y = target.to_learnt(solo[target.column].to_numpy(np.float64), features)
    return Rows(solo, transform_features(features, "full"), y)


def fitted(
    rows: Rows, target: Quantity, config: FitConfig, start: ScalarStack | None = None
) -> ScalarStack:
    weights = np.ones((config.ensemble, len(rows.y)))
    inputs = select_inputs(target.inputs, "full")
    return fit_scalar(rows.x, rows.y, weights, inputs, config, start=start)


def errors(stack: ScalarStack, rows: Rows, target: Quantity) -> np.ndarray:
    """Return the percentage error of each row's median."""
    quantiles = combine_member_arrays(predict_quantiles(stack, rows.x))
    forecast = target.to_measured(quantiles, feature_matrix(rows.table, "full"))
    measured = rows.table[target.column].to_numpy(np.float64)
    return np.asarray(100 * np.abs(forecast[:, LEVELS.index(0.5)] / measured - 1))


def of_gpus(solo: pd.DataFrame, settings: Settings) -> list[str]:
    """Return a line for each GPU left out of pre-training."""
    target = QUANTITIES["step_time"]
    every = rows_of(solo[solo["device_class"] == GPU], target)
    kinds = every.table["device_kind"]
    lines = [
        "| GPU | rows asked | " + " | ".join(f"{n} runs" for n in RUNS) + " | 100 runs alone |",
        "|---|---:|" + "---:|" * (len(RUNS) + 1),
    ]
    for kind, count in kinds.value_counts().sort_index().items():
        if count < LEAST_ROWS:
            continue
        here = (kinds == kind).to_numpy(bool)
        sys.stderr.write(f"{kind} left out\n")
        config = settings.select(int((~here).sum()), is_fine_tuning=False)
        start = fitted(every.of(~here), target, config)
        found: dict[str, list[np.ndarray]] = {}
        test_rows = 0
        for seed in SEEDS:
            test, pool = halves(every.of(here), seed)
            test_rows = len(test.y)
            for n in RUNS:
                if n == 0:
                    percent_errors = errors(start, test, target)
                elif n > len(pool.y):
                    continue
                else:
                    fine = settings.select(n, is_fine_tuning=True)
                    percent_errors = errors(
                        fitted(pool.of(first(n, pool)), target, fine, start), test, target
                    )
                found.setdefault(str(n), []).append(percent_errors)
            if len(pool.y) >= RUNS[-1]:
                own = settings.select(RUNS[-1], is_fine_tuning=False)
                own_fit = fitted(pool.of(first(RUNS[-1], pool)), target, own)
                found.setdefault("own_fit", []).append(errors(own_fit, test, target))
        cells = [format_errors(found.get(name)) for name in (*map(str, RUNS), "own_fit")]
        lines.append(f"| {kind} | {test_rows} | " + " | ".join(cells) + " |")
    return lines


def halves(rows: Rows, seed: int) -> tuple[Rows, Rows]:
    """Return rows of half of the models, and the others in a random order."""
    order = np.random.default_rng(seed)
    models = order.permutation(rows.table["model"].unique())
    test = rows.table["model"].isin(set(models[: len(models) // 2])).to_numpy(bool)
    return rows.of(test), rows.of(order.permutation(np.flatnonzero(~test)))


def first(n: int, rows: Rows) -> np.ndarray:
    return np.arange(len(rows.y)) < n


def of_this_machine(local: Path, settings: Settings) -> list[str]:
    """Return a line for each predictor and number of local jobs."""
    with TemporaryDirectory() as folder:
        featurize([*COMMITTED, local], Path(folder))
        solo = pd.read_parquet(Path(folder) / "solo.parquet")
    campaign = pd.read_parquet(local / "executions.parquet")["campaign"].iloc[0]
    solo = solo[solo["device_class"] == PROCESSOR]
    lines = [
        "| predictor | jobs asked | " + " | ".join(f"{n} runs" for n in RUNS) + " |",
        "|---|---:|" + "---:|" * len(RUNS),
    ]
    for predictor, name in WHAT.items():
        target = QUANTITIES[predictor]
        every = rows_of(solo, target)
        mine = np.flatnonzero((every.table["campaign"] == campaign).to_numpy(bool))
        others = np.flatnonzero((every.table["campaign"] != campaign).to_numpy(bool))
        found: dict[int, list[np.ndarray]] = {n: [] for n in RUNS}
        for seed in SEEDS:
            order = np.random.default_rng(seed).permutation(mine)
            test, pool = every.of(order[:TEST_JOBS]), order[TEST_JOBS:]
            # A job that is asked about may be in a committed campaign too: it is not learnt there.
            known = ~every.table["job_id"].isin(test.table["job_id"]).to_numpy(bool)
            base = others[known[others]]
            for n in RUNS:
                if n > len(pool):
                    continue
                rows = every.of(np.concatenate([base, pool[:n]]))
                stack = fitted(rows, target, settings.select(len(rows.y), is_fine_tuning=False))
                found[n].append(errors(stack, test, target))
        cells = " | ".join(format_errors(found[n]) for n in RUNS)
        lines.append(f"| {name} | {TEST_JOBS} | {cells} |")
    return lines


def format_errors(percent_errors: Sequence[np.ndarray] | None) -> str:
    """Return mean and median percentage error, over all seeds."""
    if not percent_errors:
        return "-"
    every = np.concatenate(percent_errors)
    return f"{every.mean():.1f} / {np.median(every):.1f}"


def main() -> None:
    make_torch_deterministic()
    settings = read_settings("step_time")
    solo = pd.read_parquet(Path(sys.argv[1]) / "solo.parquet")
    lines = [
        "# What a few local runs are worth",
        "",
        "By `python -m benchmarks.predictors.local_runs`. Mean and median absolute percentage",
        "error, over three random choices of what is asked and what is run.",
        "",
        "## A GPU that pre-training never saw: step time",
        "",
        "The networks of the other GPUs' rows, as they are and after going on with so many runs;",
        "beside them a network of a hundred runs alone.",
        "",
        *of_gpus(solo, settings),
    ]
    if len(sys.argv) > 2:
        lines += [
            "",
            "## This machine: two cores, like those of the committed campaigns",
            "",
            "Jobs measured anew; none that is asked about was learnt, whoever ran it.",
            "",
            *of_this_machine(Path(sys.argv[2]), settings),
        ]
    PAGE.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
