"""Improvement by a few local runs over the pretrained release.

Run ``python -m benchmarks.predictors.local_runs data/.pretraining/features [LOCAL_CAMPAIGN]`` after
`make pretrained`; writes docs/benchmarks/local_runs.md. Minutes on one core.

The first part leaves each GPU of the public tables out of pre-training, and measures the error of
its step times before and after fine-tuning on 10, 30 and 100 of its runs. Half of its models are
for testing, and the runs are of the other half. The second part measures the error on a campaign of
this machine, a processor like that of the committed campaigns, with 0, 10, 30 and 100 of its jobs.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd

from benchmarks.markdown import write_page
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
from presage.models.training.torch_settings import make_torch_deterministic
from presage.pipelines.stages.feature_table import feature_matrix
from presage.pipelines.stages.featurize import featurize
from presage.pipelines.stages.fit_settings import Settings, read_settings

PAGE = Path("docs/benchmarks/local_runs.md")
COMMITTED = [Path("data/profiles/cpu-2"), Path("data/profiles/cpu-2-zoo")]
RUNS = (0, 10, 30, 100)
LEAST_ROWS = 50  # of a GPU that is left out
SEEDS = (0, 1, 2)
TEST_JOBS = 30  # of the local campaign
WHAT = {"step_time": "step time", "memory": "memory", "compute_utilization": "utilization"}


@dataclass(frozen=True)
class Rows:
    """Rows of one target: transformed features, labels, and the rows themselves."""

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
        "| GPU | test rows | " + " | ".join(f"{n} runs" for n in RUNS) + " | only 100 runs |",
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
        "| predictor | test jobs | " + " | ".join(f"{n} runs" for n in RUNS) + " |",
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
            # Test jobs may be in a committed campaign too, and are left out of it.
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
        "# Value of local measurements",
        "",
        "How much do a few measurements of an operator's own jobs improve the shipped networks?",
        "Written by `python -m benchmarks.predictors.local_runs`. Each cell has the mean and the",
        "median absolute percentage error, over three random splits into test and local jobs.",
        "",
        "## A GPU that is not in the training data: step time",
        "",
        "Networks that are trained on all other GPUs, then fine-tuned on the given number of local",
        "runs. Test rows are of models that are not among the local runs. The last column is a",
        "network that is trained on 100 local runs only.",
        "",
        *of_gpus(solo, settings),
    ]
    if len(sys.argv) > 2:
        lines += [
            "",
            "## This machine: two cores, like those of the committed campaigns",
            "",
            "Networks that are trained on the committed campaigns and the given number of local",
            "jobs. No test job is in the training data.",
            "",
            *of_this_machine(Path(sys.argv[2]), settings),
        ]
    write_page(PAGE, lines)


if __name__ == "__main__":
    main()
