"""timm: training and inference steps of a thousand image models, at the largest feasible batch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from presage.errors import TableError
from presage.features.device.device import catalogue
from presage.pipelines.importers.imported import Imported, Origin
from presage.pipelines.importers.public_models.graph_cache import GraphCache
from presage.pipelines.importers.public_models.timm_job import TimmJob, add_timm_job
from presage.pipelines.importers.published_file import DOCS, find_files, read_csv, read_parquet

ORIGIN = Origin(
    "timm", "https://github.com/huggingface/pytorch-image-models, results/", "Apache-2.0"
)
# CUDA's autocast uses fp16 by default, that of a processor bf16.
PRECISIONS = {"amp": "fp16", "amp_bf16": "bf16", "bf16": "bf16", "fp16": "fp16", "fp32": "fp32"}
LAYOUTS = {"nchw": "contiguous", "nhwc": "channels-last"}
TIDIED = {
    "file": str, "mode": str, "precision": str, "layout": str, "torch": str, "device": str,
    "model": str, "img_size": int, "batch_size": int, "step_time_ms": float,
    "param_count_m": float,
}  # fmt: skip
NAME = re.compile(
    r"benchmark-(?P<mode>infer|train)-(?P<precision>[a-z0-9_]+)-(?P<layout>nchw|nhwc)"
    r"-pt(?P<torch>\d{3})(?:-cu(?P<cuda>\d{3}))?-(?P<device>(?:cpu-)?\w+)(?P<dynamo>-dynamo)?"
)
EXPECTED = "timm_step_time.parquet, or upstream's results/benchmark-*.csv"


def read(path: Path, imported: Imported, graphs: GraphCache) -> None:
    """Read the tidied table, or upstream's file per device, precision and memory layout."""
    for file in find_files(path, ("timm_step_time*.parquet", "benchmark-*.csv*"), EXPECTED):
        rows = read_parquet(file, TIDIED) if file.suffix == ".parquet" else _upstream(file)
        for name, absent in (("dynamo", False), ("cuda", "")):  # processors have no CUDA
            column = rows[name] if name in rows else pd.Series(absent, rows.index)
            rows[name] = column.where(column.notna(), absent)
        for row in rows.to_dict("records"):
            _add(row, file, imported, graphs)


def _upstream(file: Path) -> pd.DataFrame:
    """Return upstream's columns by the tidied names; the file name contains the rest."""
    match = NAME.fullmatch(file.name.removesuffix(".gz").removesuffix(".csv"))
    if match is None:
        raise TableError(f"{file}: its name does not say what was measured, as {EXPECTED}; {DOCS}")
    kind = match["mode"]
    names = {
        f"{kind}_img_size": "img_size",
        f"{kind}_batch_size": "batch_size",
        f"{kind}_step_time": "step_time_ms",
        "param_count": "param_count_m",
    }
    kinds = {"model": str, **{old: TIDIED[new] for old, new in names.items()}}
    rows = read_csv(file, kinds).rename(columns=names)
    return rows.assign(
        file=match[0],
        mode={"infer": "inference"}.get(kind, kind),
        precision=match["precision"],
        layout=match["layout"],
        torch=_torch_version(match["torch"]),
        cuda=f"cu{match['cuda']}" if match["cuda"] else "",
        device=match["device"],
        dynamo=match["dynamo"] is not None,
    )


def _torch_version(digits: str) -> str:
    """Return the version of "112" or "291": minor versions of 1 have two digits."""
    if digits.startswith("1"):
        return f"1.{digits[1:]}"
    return f"2.{digits[1]}" + (f".{digits[2]}" if digits[2] != "0" else "")


def _add(row: Mapping[Any, Any], file: Path, imported: Imported, graphs: GraphCache) -> None:
    if row["dynamo"]:
        imported.skip("compiled by torch.compile, which runs other operators than the graph has")
        return
    device = imported.kind_of(row["device"])
    if device is None:
        return
    job_id, job = _job(row, file, on_processor=catalogue()[device].compute_capability == 0)
    add_timm_job(
        imported, graphs, job_id, job,
        parameters=1e6 * row["param_count_m"], memory_format=LAYOUTS[row["layout"]],
    )  # fmt: skip
    imported.execution(
        job_id, device, campaign=row["file"], versions=_versions(row),
        step_time_median_s=row["step_time_ms"] / 1e3,
    )  # fmt: skip


def _job(row: Mapping[Any, Any], file: Path, *, on_processor: bool) -> tuple[str, TimmJob]:
    for name, known in (
        ("precision", PRECISIONS), ("layout", LAYOUTS), ("mode", ("train", "inference"))
    ):  # fmt: skip
        if row[name] not in known:
            raise TableError(f"{file}: {name} {row[name]!r} is none of {', '.join(known)}; {DOCS}")
    if row["step_time_ms"] <= 0 or row["batch_size"] < 1 or row["img_size"] < 1:
        raise TableError(
            f"{file}: {row['model']}: a step of {row['step_time_ms']} ms at batch size "
            f"{row['batch_size']}, image size {row['img_size']}, cannot be; {DOCS}"
        )
    automatic = row["precision"] == "amp"
    job = TimmJob(
        model=str(row["model"]).split(".")[0],  # without the tag of the weights
        side=row["img_size"],
        batch_size=row["batch_size"],
        optimizer="sgd" if row["mode"] == "train" else "",  # benchmark.py's default
        precision="bf16" if automatic and on_processor else PRECISIONS[row["precision"]],
    )
    layout = "" if row["layout"] == "nchw" else f"/{LAYOUTS[row['layout']]}"
    what = f"{job.optimizer or 'inference'}/{job.precision}{layout}"
    return f"timm/{job.model}/s{job.side}/b{job.batch_size}/{what}", job


def _versions(row: Mapping[Any, Any]) -> str:
    digits = str(row["cuda"]).removeprefix("cu")
    cuda = f" cuda={digits[:-1]}.{digits[-1]}" if digits else ""
    return f"torch={row['torch']}{cuda}"
