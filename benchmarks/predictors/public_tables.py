"""Forecast errors on public tables, written to docs/benchmarks/public_tables.md.

Run ``python -m benchmarks.predictors.public_tables DATASETS``, the folder of the sources' files
(docs/pipeline/importing.md): what ``presage benchmark`` says of each question, on two seeds,
which deal the folds as well. Most of an hour on two cores, once the operator graphs are cached.
Answers are kept in build/public_tables, so that a run that was interrupted goes on: delete the
folder after a change of the code.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.markdown import write_page
from presage.features.columns.schema import columns, matrix
from presage.features.device.device import usable_cores
from presage.models.training.fit import LEVELS
from presage.models.training.splits import Folds
from presage.models.training.torch_settings import make_torch_deterministic
from presage.pipelines.benchmark.benchmark_rows import Rows
from presage.pipelines.benchmark.benchmark_run import run
from presage.pipelines.benchmark.benchmark_splits import split_folds
from presage.pipelines.benchmark.files import read_tables
from presage.pipelines.benchmark.tasks import TASKS
from presage.pipelines.importers.public_models.graph_cache import GraphCache
from presage.system.files.atomic_file import write_atomically

PAGE = Path("docs/benchmarks/public_tables.md")
ANSWERS = Path("build/public_tables")
SEEDS = (0, 1)
TIMM = ("timm/timm_step_time.parquet",)
TORCHVISION = ("torchvision/torchvision_step_time.csv.gz",)
MEMORY = ("gpumemnet/timm_train_memory_a100_40gb.csv.gz",)
GAVEL = ("gavel/pairs.csv.gz", "gavel/isolated.csv.gz")
BASELINES = ("boosted_trees", "linear", "constant", "mean_by_members", "additive")
INTRODUCTION = """\
Written by `python -m benchmarks.predictors.public_tables DATASETS`, which runs `presage benchmark`
with two seeds; the seed also determines the folds. Errors are MAPE / median absolute percentage
error; for slowdowns, of the normalised speed. The smallest MAPE is bold. Every row is predicted by
networks that were not trained on the part that is left out. Width is the median width of the 80 %
interval, in per cent of the measured value.

- **left out**: models and families in five parts; [architecture groups of
  families](../../features/job/architecture_groups.py), GPUs, framework releases and sources in
  turn. "Family" leaves out `resnetaa` with `resnet` in training, "group" does not.
- **floor**: the error of a measurement that is predicted by its repetitions, where a table has any.
- **baselines**: they have the same columns and targets. The constant is the median label, the mean
  by members that of co-locations with as many members. The additive rule adds the effects of victim
  and co-runners to the device's mean log speed.
- **target**: some are older than the goals in use. [Decision
  63](../decisions/0063-keep-the-device-speeds-of-training.md) has a table of these goals, what is
  reached, what is missed and what was tried.
- **settings**: those of the networks were chosen on these tables, with the splits by model, family,
  GPU and pair and with ParvaGPU's test rows ([decisions 9 to
  15](../decisions/0009-predict-a-factor-over-an-analytic-prior.md)), not on inner folds, so the
  networks' figures there are optimistic. Splits by group, release and source took no part in the
  choice. Baselines were not tuned."""
NEAR_TWINS = """\
A near-twin is another model of the same family in the training data, whose FLOPs and live bytes per
sample and parameters are all within a tenth. Errors of training steps of unseen models on the
RTX 3090, for rows with and without a near-twin:"""
TWIN = 1.1  # sizes of models that are nearly the same are within this ratio


@dataclass(frozen=True)
class Question:
    """Target and left-out part of a benchmark; ``target`` is in the units of the page."""

    title: str
    task: str
    train: tuple[str, ...]
    split: str | None
    target: str
    test: tuple[str, ...] = ()


QUESTIONS = (
    Question("Training step, RTX 3090", "train-step", TIMM, "model", "4.5 / 2.2"),
    Question("Training step, RTX 3090", "train-step", TIMM, "family", "9 / 5"),
    Question("Training step, RTX 3090", "train-step", TIMM, "group", "12"),
    Question("Training step, RTX 3090", "train-step", TIMM, "release", "-"),
    Question("Training step, six GPUs", "train-step", TORCHVISION, "device", "15"),
    Question("Training step, six GPUs", "train-step", TORCHVISION, "group", "-"),
    Question("Training step, both sources", "train-step", TIMM + TORCHVISION, "source", "-"),
    Question("Inference step, three GPUs", "inference-step", TIMM, "device", "12"),
    Question("Inference step, three GPUs", "inference-step", TIMM, "release", "-"),
    Question("Training memory, A100", "train-memory", MEMORY, "model", "4 / 2"),
    Question("Training memory, A100", "train-memory", MEMORY, "family", "6 / 3"),
    Question("Training memory, A100", "train-memory", MEMORY, "group", "-"),
    Question(
        "Utilization of MLPs, A100", "utilization",
        ("gpumemnet/mlp_train_utilization_a100_40gb.csv.gz",), None,
        "MAE 1.2 points, RMSLE 0.12",
    ),
    Question("Slowdown of pairs, Gavel", "interference", GAVEL, "pair", "K80 5, P100 6, V100 12"),
    Question(
        "Slowdown of pairs, Gavel", "interference", GAVEL, "family", "K80 8, P100 10, V100 22"
    ),
    Question("Slowdown of pairs, Gavel", "interference", GAVEL, "device", "-"),
    Question(
        "Slowdown of pairs, Lucid", "interference", ("lucid/pairs.csv", "lucid/solo.csv"),
        "model", "MAE 0.06",
    ),
    Question(
        "Slowdown of three to five, trained on two, ParvaGPU", "interference",
        ("parvagpu/few.csv",), None, "10", test=("parvagpu/many.csv",),
    ),
)  # fmt: skip


def ask(question: Question, datasets: Path, seed: int) -> dict[str, Any]:
    """Return the output of ``presage benchmark --json``."""
    kept = ANSWERS / f"{question.task}-{question.title}-{question.split}-{seed}.json"
    if kept.exists():
        answer: dict[str, Any] = json.loads(kept.read_text())
        return answer
    make_torch_deterministic()
    with TemporaryDirectory() as scratch:
        train, test = (
            [_file(name, datasets, Path(scratch)) for name in names]
            for names in (question.train, question.test)
        )
        result = run(
            question.task, train, test,
            graphs=GraphCache(), progress=_silent, split=question.split, seed=seed,
        )  # fmt: skip
    answer = result.as_json()
    write_atomically(kept, lambda path: path.write_text(json.dumps(answer)))
    return answer


def near_twins(datasets: Path, seed: int) -> tuple[float, list[np.ndarray]]:
    """Return the share of timm's rows of unseen models with a near-twin in training; errors in %.

    A near-twin is another model of the family whose FLOPs and live bytes of a sample, and
    parameters, are all within a tenth. The errors are of rows with one, and of rows without.
    """
    make_torch_deterministic()
    task = TASKS["train-step"]
    rows: Rows = task.rows(read_tables([datasets / name for name in TIMM], GraphCache()))
    rows = rows.take(np.isfinite(rows.measured))
    median = task.cross_forecast(rows, "model", seed=seed, progress=_silent).quantiles
    off = 100 * np.abs(median[:, LEVELS.index(0.5)] / rows.measured - 1)
    twin = _has_twin(rows, split_folds(rows.metadata, "model", seed=seed))
    return float(twin.mean()), [off[twin], off[~twin]]


def _has_twin(rows: Rows, folds: Folds) -> np.ndarray:
    """Return which rows have a near-twin among those of the other folds."""
    table = pd.DataFrame(matrix(rows.placements, "full"), columns=columns("full"))
    of_sample = table[["forward_flops", "peak_live_bytes"]].div(table["batch_size"], axis=0)
    sizes = np.log(np.column_stack([of_sample, table["parameters"]]))
    out = np.zeros(len(rows), dtype=bool)
    for at in rows.metadata.groupby("family").indices.values():
        near = (np.abs(sizes[at][:, None] - sizes[at][None]) <= np.log(TWIN)).all(axis=-1)
        out[at] = (near & (folds[at][:, None] != folds[at][None])).any(axis=1)
    return out


def _file(name: str, datasets: Path, scratch: Path) -> Path:
    """Return a file of the datasets; ParvaGPU's with up to two processes, or with more."""
    if not name.startswith("parvagpu/"):
        return datasets / name
    rows = pd.read_csv(datasets / "parvagpu/parvagpu_tidy.csv.gz")
    few = rows["Workload Number"] <= 2
    path = scratch / Path(name).name
    rows[few if path.stem == "few" else ~few].to_csv(path, index=False)
    return path


def _silent(done: int, total: int) -> None:
    pass


def page(
    found: Mapping[Question, Sequence[Mapping[str, Any]]],
    twins: Sequence[tuple[float, list[np.ndarray]]],
) -> list[str]:
    """Return the page's lines."""
    lines = [
        "# Forecast error on public tables",
        "",
        INTRODUCTION,
        "",
        "| what | rows | left out | target | seed | floor | network | 80 % covers | 90 % covers "
        "| width | boosted trees | linear | constant | mean by members | additive rule |",
        "|---|---:|---|---|---:|---|---|---:|---:|---:|---|---|---|---|---|",
    ]  # fmt: skip
    for question, results in found.items():
        for result in results:
            mlp = result["mlp"]
            guesses = {name: result["baselines"].get(name) for name in BASELINES}
            best = min(one["mape"] for one in (mlp, *guesses.values()) if one)
            cells = [
                question.title, str(result["rows"]), result["split"], question.target,
                str(result["seed"]), _off(result["floor"]), _off(mlp, best),
                f"{mlp['coverage']:.0f}", f"{mlp['coverage_90']:.0f}",
                f"{mlp['interval_width']:.0f}", *(_off(one, best) for one in guesses.values()),
            ]  # fmt: skip
            lines.append(f"| {' | '.join(cells)} |")
    lines += [
        "",
        "## Error by device, by part and by family",
        "",
        "| what | left out | seed | by device: MAPE (rows), 80 / 90 % interval covers "
        "| by the part left out | families with the largest error: MAPE (rows) |",
        "|---|---|---:|---|---|---|",
    ]
    for question, results in found.items():
        for result in results:
            slices = result["slices"]
            split = result["split"]
            parts = slices.get(split, {}) if split in ("group", "release", "source") else {}
            lines.append(
                f"| {question.title} | {split} | {result['seed']} "
                f"| {_worst(slices['device'], 6, covers=True)} "
                f"| {_worst(parts, 30, covers=True) or '-'} | {_worst(slices['family'], 5)} |"
            )
    utilization = next(r for q, r in found.items() if q.task == "utilization")
    lucid = next(r for q, r in found.items() if "Lucid" in q.title)
    lines += [
        "",
        "In the labels' units, for each seed: utilization MAE "
        + ", ".join(f"{r['mlp']['mae']:.2f} points" for r in utilization)
        + ", RMSLE "
        + ", ".join(f"{r['mlp']['rmsle']:.3f}" for r in utilization)
        + "; Lucid MAE "
        + ", ".join(f"{r['mlp']['mae']:.3f}" for r in lucid)
        + ".",
        "",
        NEAR_TWINS,
        "",
        "| seed | rows with a near-twin % | with | without (target 6.5) |",
        "|---:|---:|---|---|",
    ]  # fmt: skip
    for seed, (share, errors) in zip(SEEDS, twins, strict=True):
        both = " | ".join(f"{e.mean():.1f} / {np.median(e):.1f}" for e in errors)
        lines.append(f"| {seed} | {100 * share:.1f} | {both} |")
    return lines


def _off(figures: Mapping[str, float] | None, best: float = -1.0) -> str:
    """Return both errors, bold if the first is the ``best``; "-" without figures."""
    if not figures:
        return "-"
    text = f"{figures['mape']:.1f} / {figures['median_ape']:.1f}"
    return f"**{text}**" if figures["mape"] == best else text


def _worst(slices: Mapping[str, Mapping[str, float]], most: int, *, covers: bool = False) -> str:
    parts: list[str] = []
    for name, figures in list(slices.items())[:most]:
        text = f"{name} {figures['mape']:.1f} ({figures['rows']:.0f})"
        if covers:
            text += f", {figures['coverage']:.0f} / {figures['coverage_90']:.0f}"
        parts.append(text)
    return "; ".join(parts)


def main() -> None:
    datasets = Path(sys.argv[1])
    ANSWERS.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(usable_cores(), get_context("spawn")) as pool:
        questions = {
            question: [pool.submit(ask, question, datasets, seed) for seed in SEEDS]
            for question in QUESTIONS
        }
        twins = [pool.submit(near_twins, datasets, seed) for seed in SEEDS]
        found = {}
        for question, running in questions.items():
            found[question] = [one.result() for one in running]
            figures = ", ".join(_off(r["mlp"]) for r in found[question])
            sys.stderr.write(f"{question.title}, {found[question][0]['split']}: {figures}\n")
        lines = page(found, [one.result() for one in twins])
    write_page(PAGE, lines)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # inherited by the processes
    main()
