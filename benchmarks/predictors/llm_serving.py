"""Accuracy of forecasts for LLM serving, written to docs/benchmarks/llm_serving.md.

Run ``python -m benchmarks.predictors.llm_serving``; it takes minutes on one core. Networks are
trained on the committed campaigns of a processor without the families llm_decode and llm_prefill,
then with some of their jobs. ``data/profiles/cpu-2-llm`` has most of these jobs:
``presage profile --campaign benchmarks/profiling/llm_decode.yaml --out data/profiles/cpu-2-llm``
measured it, and ``llm_prefill.yaml`` added to it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd

from benchmarks.markdown import write_page
from benchmarks.predictors.local_runs import Rows, errors, fitted, rows_of
from presage.features.device.device_class import PROCESSOR
from presage.features.placement import Placement
from presage.features.quantities.quantity import Quantity
from presage.features.quantities.quantity_registry import MEMORY, STEP_TIME
from presage.features.tables.campaign import read_campaign
from presage.models.release.pretrained import pretrained_release
from presage.models.release.release import load_release
from presage.models.training.torch_settings import make_torch_deterministic
from presage.pipelines.benchmark.repeats import floor_figures, solo_repeats
from presage.pipelines.profiling.zoo.language.llm_serving import LlmServing, llm_serving_of
from presage.pipelines.stages.featurize import featurize
from presage.pipelines.stages.fit_settings import read_settings
from presage.serving.predictor.predictor import Predictor
from presage.system.text.units import quantity as with_unit

PAGE = Path("docs/benchmarks/llm_serving.md")
OURS = [Path("data/profiles/cpu-2"), Path("data/profiles/cpu-2-zoo")]
SERVING = Path("data/profiles/cpu-2-llm")
GPU = Path("data/profiles/h200")
FAMILIES = ("llm_decode", "llm_prefill")
KNOWN: tuple[int | None, ...] = (0, 1, 5, None)  # serving jobs in training; None: all others
FOLDS, SEEDS = 4, (0, 1, 2)


@dataclass(frozen=True)
class Result:
    """Out-of-fold errors of one quantity.

    Attributes
    ----------
    jobs : DataFrame
        The serving jobs: job_id, family, batch_size, context.
    percent : mapping of int to ndarray of shape (seeds, jobs)
        Percentage errors by the number of serving jobs in training.
    prior : ndarray of shape (jobs,)
        Errors of the analytic prior times the median factor of all other jobs.
    floor : mapping
        Figures of repeated measurements of serving jobs; empty without any.
    """

    quantity: Quantity
    jobs: pd.DataFrame
    percent: dict[int | None, np.ndarray]
    prior: np.ndarray
    floor: dict[str, float]


def serving_of(job_id: str) -> LlmServing:
    """Return the figures of a serving job."""
    found = llm_serving_of(job_id)
    if found is None:
        raise ValueError(f"{job_id}: not a job that serves an LLM")
    return found


def evaluate(solo: pd.DataFrame, folders: Sequence[Path], target: Quantity) -> Result:
    """Return the errors of one quantity on all serving jobs, each left out of training."""
    every = rows_of(solo, target)
    is_serving = every.table["family"].isin(FAMILIES).to_numpy(bool)
    base, serving = np.flatnonzero(~is_serving), every.of(is_serving)
    at = np.flatnonzero(is_serving)
    settings = read_settings(target.name)

    def score(train: np.ndarray, test: Rows) -> np.ndarray:
        config = settings.select(len(train), is_fine_tuning=False)
        return errors(fitted(every.of(train), target, config), test, target)

    found: dict[int | None, np.ndarray] = {0: score(base, serving)[None]}
    names = serving.table["job_id"].to_numpy()
    for known in KNOWN[1:]:
        by_seed = []
        for seed in SEEDS:
            order = np.random.default_rng(seed).permutation(np.unique(names))
            out = np.full(len(names), np.nan)
            for fold in range(FOLDS):
                is_test = np.isin(names, order[fold::FOLDS])
                others = [job for job in order if job not in set(order[fold::FOLDS])][:known]
                train = np.concatenate([base, at[np.isin(names, others)]])
                out[is_test] = score(train, every.of(at[is_test]))
                sys.stderr.write(f"{target.name}: {known or 'all'} jobs, seed {seed}, {fold}\n")
            by_seed.append(out)
        found[known] = np.stack(by_seed)
    figures = [serving_of(job) for job in names]
    jobs = serving.table[["job_id", "family"]].assign(
        batch_size=[one.cache.batch_size for one in figures],
        context=[one.cache.context for one in figures],
    )
    return Result(
        target, jobs, found, prior_errors(every.of(base), serving), floor(folders, target)
    )


def prior_errors(base: Rows, serving: Rows) -> np.ndarray:
    """Return the percentage errors of the prior times the median factor of the other jobs."""
    return np.asarray(100 * np.abs(np.exp(np.median(base.y) - serving.y) - 1))


def floor(folders: Sequence[Path], target: Quantity) -> dict[str, float]:
    """Return by how much repeated measurements of one serving job differ."""
    campaigns = [
        replace(
            campaign,
            executions=serving_rows(campaign.executions),
            colocations=serving_rows(campaign.colocations),
        )
        for campaign in map(read_campaign, folders)
    ]
    repeats = solo_repeats(campaigns, target)
    return floor_figures(repeats) | {"jobs": float(len(repeats))} if repeats else {}


def serving_rows(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of serving jobs."""
    rows: pd.DataFrame = table[table["job_id"].str.startswith(FAMILIES)]
    return rows


def gpu_rows() -> Iterator[str]:
    """Yield a table of the shipped release's forecasts for the serving jobs of the H200."""
    campaign = read_campaign(GPU)
    rows = serving_rows(campaign.executions)
    predictor = Predictor(load_release(pretrained_release()))
    (measured,) = campaign.devices.values()
    yield "| job | KV cache | step, measured | predicted | 80 % interval | tokens/s, measured |"
    yield "|---|---:|---:|---:|---:|---:|"
    for _, row in rows.iterrows():
        placement = Placement(campaign.jobs[row["job_id"]], measured)
        step, one = predictor.predict([placement])[0].step_time_s, serving_of(row["job_id"])
        median, low, high = (with_unit(x, "seconds") for x in (step.median, step.low, step.high))
        seconds = float(row["step_time_median_s"])
        yield (
            f"| `{row['job_id']}` | {with_unit(one.cache.size_bytes, 'bytes')} "
            f"| {with_unit(seconds, 'seconds')} | {median} | {low} to {high} "
            f"| {one.tokens_per_step / seconds:,.0f} |"
        )


def page(results: Sequence[Result], rows: int) -> Iterator[str]:
    """Yield the lines of the page."""
    yield "# Forecasts for LLM serving"
    yield ""
    yield f"Step time and memory of {len(results[0].jobs)} jobs that serve small LLMs on two cores"
    yield "of a processor: prefill of a prompt, and decode of one token with a KV cache of a given"
    yield "context. Written by `python -m benchmarks.predictors.llm_serving`."
    yield ""
    yield "**This is PyTorch on a processor, not vLLM or another LLM server:** no paged attention,"
    yield "no continuous batching, sequences of equal length, models of 1 to 60 million parameters."
    yield ""
    yield "The jobs are the campaign `data/profiles/cpu-2-llm`, three models at four lengths and"
    yield "two or three batch sizes, and the serving jobs of `data/profiles/cpu-2-zoo`. A run with"
    yield "more than 5 % of other load on the processor was repeated until it had less."
    yield ""
    yield "## Error by the number of serving jobs in training"
    yield ""
    yield "Mean / median absolute percentage error. Networks are trained on all other families"
    yield f"({rows} rows, among them training of `llama` and `gpt`), and on 0, 1, 5 or all of the"
    yield f"serving jobs that are not in the test fold ({FOLDS} folds by job, means over"
    yield f"{len(SEEDS)} draws). *Prior* is the roofline, or the sum of the memory components,"
    yield "times one factor for all jobs. *Floor* is by how much repeated measurements of a"
    floor_jobs = int(max(one.floor.get("jobs", 0) for one in results))
    yield f"serving job differ ({floor_jobs} jobs, by their solo references in co-locations)."
    yield ""
    heads = ["0 jobs", "1 job", "5 jobs", "all other jobs"]
    yield "| quantity | family | jobs | prior | " + " | ".join(heads) + " | floor |"
    yield "|---|---|---:|" + "---:|" * (len(heads) + 2)
    for one in results:
        for family in FAMILIES:
            mask = (one.jobs["family"] == family).to_numpy(bool)
            cells = [both(one.prior[mask]), *(both(one.percent[n][:, mask]) for n in KNOWN)]
            known = one.floor
            end = f"{known['mape']:.1f} / {known['median_ape']:.1f}" if known else "-"
            yield (
                f"| {one.quantity.title.lower()} | {family} | {mask.sum()} | "
                f"{' | '.join(cells)} | {end} |"
            )
    for one in results:
        for column, name in (("batch_size", "batch size"), ("context", "context")):
            yield ""
            yield f"## {one.quantity.title}, error by {name}"
            yield ""
            yield f"| {name} | jobs | 0 jobs | all other jobs |"
            yield "|---:|---:|---:|---:|"
            for value in sorted(one.jobs[column].unique()):
                mask = (one.jobs[column] == value).to_numpy(bool)
                cells = [both(one.percent[n][:, mask]) for n in (0, None)]
                yield f"| {value:,} | {mask.sum()} | {' | '.join(cells)} |"
    yield ""
    yield "## On an H200"
    yield ""
    yield "The [shipped release](hopper.md) was trained on no H200; its GPU rows are public tables."
    yield "Three serving jobs were measured on an H200:"
    yield ""
    yield from gpu_rows()


def both(percent: np.ndarray) -> str:
    """Return the mean and the median of percentage errors."""
    return f"{np.nanmean(percent):.1f} / {np.nanmedian(percent):.1f}"


def main() -> None:
    """Write the page."""
    make_torch_deterministic()
    folders = [*OURS, SERVING]
    with TemporaryDirectory() as folder:
        featurize(folders, Path(folder))
        solo = pd.read_parquet(Path(folder) / "solo.parquet")
    solo = solo[solo["device_class"] == PROCESSOR]
    others = int((~solo["family"].isin(FAMILIES)).sum())
    write_page(PAGE, page([evaluate(solo, folders, q) for q in (STEP_TIME, MEMORY)], others))


if __name__ == "__main__":
    main()
