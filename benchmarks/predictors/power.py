"""Accuracy of predicted power on the rows of an H200, written to docs/benchmarks/power.md.

Run ``python -m benchmarks.predictors.power``. Every forecast is from networks and baselines that
were trained without the row's job, or without its family.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd

from benchmarks.markdown import write_page
from presage.features.quantities.quantity_registry import POWER
from presage.pipelines.evaluation import cross_validation as cv
from presage.pipelines.evaluation.solo_baselines import solo_baselines
from presage.pipelines.stages.evaluate import score_forecasts
from presage.pipelines.stages.featurize import featurize
from presage.pipelines.stages.fit_settings import read_settings
from presage.pipelines.stages.train import train

CAMPAIGN = Path("data/profiles/h200")
PAGE = Path("docs/benchmarks/power.md")
MODELS = {
    "mlp": "network, full features",
    "mlp_published": "network, published features",
    "linear": "linear",
    "boosted_trees": "boosted trees",
    "constant": "constant",
}
LEFT_OUT = {"job": "job", "family": "family"}
Figures = dict[str, float]


def measure(campaign: Path) -> tuple[pd.DataFrame, dict[str, dict[str, Figures]]]:
    """Return the measured rows, and the figures of each model by split."""
    with TemporaryDirectory() as folder:
        featurize([campaign], Path(folder))
        solo = pd.read_parquet(Path(folder) / "solo.parquet")
    forecasts = train(solo, POWER, read_settings(POWER.name), {}).forecasts
    ours, others = score_forecasts(forecasts), solo_baselines(solo, POWER.name)
    by_split = {split: ours[split] | others[split] for split in cv.SPLITS}
    return solo[solo[POWER.column].notna()], by_split


def page(rows: pd.DataFrame, found: dict[str, dict[str, Figures]]) -> Iterator[str]:
    """Yield the lines of the page."""
    watts = rows[POWER.column]
    yield "# Predicted power"
    yield ""
    yield f"Mean power of the whole board while a job runs solo: {len(rows)} jobs on one NVIDIA"
    yield f"H200, {watts.min():.0f} to {watts.max():.0f} W, median {watts.median():.0f} W."
    yield "The rows are those of [hopper.md](hopper.md), from the driver's energy counter."
    yield "Written by `python -m benchmarks.predictors.power`."
    yield ""
    yield "Errors on jobs, or whole families, that were left out of training. Coverage is that of"
    yield "the 80 % interval."
    for split, name in LEFT_OUT.items():
        yield ""
        yield f"## {name.capitalize()} left out"
        yield ""
        yield "| model | mean error | median error | mean absolute error | coverage |"
        yield "|---|---:|---:|---:|---:|"
        for model, title in MODELS.items():
            one = found[split][model]
            covered = f"{one['coverage_80%']:.0f} %" if "coverage_80%" in one else "-"
            yield (
                f"| {title} | {one['mape']:.1f} % | {one['median_ape']:.1f} % "
                f"| {one['mae']:.0f} W | {covered} |"
            )
    yield ""
    yield "## Limits"
    yield ""
    yield "- **One GPU, 32 rows.** No second GPU was measured, so nothing here says how well a"
    yield "  model carries over to another kind. Training needs rows of your own GPUs."
    yield "- No training set contains these rows, and processors have no meter: the shipped release"
    yield "  does not predict power. `dvc repro` trains the predictor once campaigns with GPU rows"
    yield "  are among its inputs ([quantities](../pipeline/quantities.md))."
    yield "- Power is of the whole board, idle power included, without the host. `presage predict`"
    yield "  shows the energy of a step as power times step time, which has the errors of both."
    yield "- Rows were measured once, so the error of repeated measurements is unknown."
    yield "- Inputs and settings are those of step times' scalars and of params.yaml. Linear models"
    yield "  and trees of four other sets of inputs were tried on these rows: errors of 16 to 27 %"
    yield "  with the job left out. The set was not chosen by them."


def main() -> None:
    """Write the page."""
    write_page(PAGE, page(*measure(CAMPAIGN)))


if __name__ == "__main__":
    main()
