"""pytorch-gpu-benchmark: steps of torchvision's classifiers at batch size 12, on 1 to 4 GPUs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from presage.errors import TableError
from presage.features.device.device import catalogue
from presage.features.graph.op_graph import OpGraph
from presage.pipelines.importers.imported import Imported, Origin
from presage.pipelines.importers.public_models.graph_cache import GraphCache, NoGraphs
from presage.pipelines.importers.public_models.timm_job import missing_graph_reason
from presage.pipelines.importers.public_models.torchvision_models import (
    CLASSIFIERS,
    SIDE,
    made_by,
    trace_classifier,
)
from presage.pipelines.importers.published_file import DOCS, find_files, read_csv

ORIGIN = Origin(
    "torchvision", "https://github.com/ryujaehun/pytorch-gpu-benchmark, and lamikr's fork", "MIT"
)
# model.half() and model.double() of upstream's script: the complete model, without autocast.
PRECISIONS = {"half": "fp16", "float": "fp32", "single": "fp32", "double": "fp64"}
BATCH_SIZE = 12  # per GPU, in upstream's script
NO_UPDATE = "none"  # upstream's training step ends with the backward pass
TIDIED = {
    "file": str, "gpu": str, "n_gpus": int, "precision": str, "mode": str, "model": str,
    "batch_per_gpu": int, "img": int, "n_meas": int, "median_ms": float,
}  # fmt: skip
NAME = re.compile(
    r"(?P<gpu>.+?)(?:_(?P<devices>\d+)_gpus)?_{1,2}(?P<precision>half|float|single|double)_model_"
    r"(?P<mode>inference|train)(?:ing)?_benchmark\.csv(?:\.gz)?"
)
EXPECTED = "torchvision_step_time.csv, or upstream's *_model_*_benchmark.csv"


@dataclass(frozen=True, slots=True)
class Steps:
    """A model's steps on some devices; ``p90_s`` is set if every step was published."""

    campaign: str
    gpu: str
    devices: int
    precision: str
    training: bool
    model: str
    batch_size: int
    steps: int
    median_s: float
    p90_s: float | None

    @property
    def optimizer(self) -> str:
        """Value as in `jobs`."""
        return NO_UPDATE if self.training else ""

    @property
    def job_id(self) -> str:
        """Name of the configuration on one device."""
        what = self.optimizer or "inference"
        return f"torchvision/{self.model}/s{SIDE}/b{self.batch_size}/{what}/{self.precision}"


def read(path: Path, imported: Imported, graphs: GraphCache) -> None:
    """Read the tidied table, or upstream's files: a column per model, a row per measured step."""
    patterns = ("torchvision_step_time.csv*", "*_model_*_benchmark.csv*")
    for file in find_files(path, patterns, EXPECTED):
        match = NAME.fullmatch(file.name)
        for steps in _upstream(file, match) if match else _tidied(file):
            _add(steps, imported, graphs)


def _tidied(file: Path) -> Iterator[Steps]:
    rows = read_csv(file, TIDIED)
    other = rows[(rows["img"] != SIDE) | (rows["median_ms"] <= 0) | (rows["n_gpus"] < 1)]
    if len(other):
        raise TableError(
            f"{file}: line {other.index[0] + 2}: image size {SIDE}, a step of more than 0 ms and "
            f"a GPU or more are expected; {DOCS}"
        )
    for row in rows.to_dict("records"):
        if row["precision"] not in PRECISIONS:
            raise TableError(
                f"{file}: precision {row['precision']!r} is none of {', '.join(PRECISIONS)}; {DOCS}"
            )
        yield Steps(
            Path(row["file"]).parent.name, row["gpu"], row["n_gpus"],
            PRECISIONS[row["precision"]], row["mode"] == "train", row["model"],
            row["batch_per_gpu"], row["n_meas"], row["median_ms"] / 1e3, None,
        )  # fmt: skip


def _upstream(file: Path, match: re.Match[str]) -> Iterator[Steps]:
    for model, column in read_csv(file, {}).items():
        if str(model).startswith("Unnamed"):  # the index of a data frame
            continue
        seconds = pd.to_numeric(column, errors="coerce").dropna() / 1e3
        if seconds.empty or (seconds <= 0).any():
            raise TableError(f"{file}: {model}: expected a step of more than 0 ms a row; {DOCS}")
        yield Steps(
            file.parent.name, match["gpu"], int(match["devices"] or 1),
            PRECISIONS[match["precision"]], match["mode"] == "train", str(model), BATCH_SIZE,
            len(seconds), float(seconds.median()), float(seconds.quantile(0.9)),
        )  # fmt: skip


def _add(steps: Steps, imported: Imported, graphs: GraphCache) -> None:
    device = imported.kind_of(steps.gpu)
    if device is None:
        return
    if steps.precision == "fp32" and "tf32" in catalogue()[device].peak_flops_per_s:
        steps = replace(steps, precision="tf32")  # torch's default of its time
    _add_job(steps, imported, graphs)
    if steps.devices == 1:
        imported.execution(
            steps.job_id, device, campaign=steps.campaign, steps=steps.steps,
            step_time_median_s=steps.median_s, step_time_p90_s=steps.p90_s,
        )  # fmt: skip
    else:
        imported.scale_out(
            steps.job_id, device, campaign=steps.campaign, nodes=1, devices=steps.devices,
            placement=str(steps.devices), step_time_s=steps.median_s,
        )  # fmt: skip


def _add_job(steps: Steps, imported: Imported, graphs: GraphCache) -> None:
    if imported.has_job(steps.job_id):
        return
    graph = _graph(steps, graphs)
    if graph is None:
        imported.note(f"job without a graph: {_why_none(steps.model, graphs)}")
    unseen: dict[str, Any] = {} if graph else {"input_elements": 3 * SIDE * SIDE}
    family = re.sub(r"[\d_].*", "", steps.model)
    imported.job(
        steps.job_id, graph=graph, name=f"{family}/{steps.model}", family=family,
        precision=steps.precision, optimizer=steps.optimizer, batch_size=steps.batch_size,
        loads_data=True,  # every step moves its batch to the device
        **unseen,
    )  # fmt: skip


def _graph(steps: Steps, graphs: GraphCache) -> OpGraph | None:
    if steps.model not in CLASSIFIERS or isinstance(graphs, NoGraphs):
        return None
    return graphs.graph(
        f"{made_by()} {steps.job_id}",
        partial(
            trace_classifier,
            steps.model,
            steps.batch_size,
            steps.precision,
            training=steps.training,
        ),
    )


def _why_none(model: str, graphs: GraphCache) -> str:
    if model not in CLASSIFIERS:
        return f"{model} is none of the classifiers that we can build"
    return missing_graph_reason(graphs, model)
