"""ParvaGPU (SC 2024): 1 to 5 processes that serve one model inside a MIG slice of an A100."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from presage.errors import TableError
from presage.features.device.device import Share
from presage.pipelines.importers.imported import Imported, Origin
from presage.pipelines.importers.public_models.graph_cache import GraphCache
from presage.pipelines.importers.public_models.public_job import PublicModel, add_job
from presage.pipelines.importers.published_file import DOCS, find_files, read_csv
from presage.pipelines.profiling.running.training_step import INFERENCE
from presage.pipelines.profiling.running.work import Row, colocation_id

ORIGIN = Origin("parvagpu", "https://github.com/MunQ-Lee/ParvaGPU_SC24, prof_data/", "MIT")
DEVICE, CAMPAIGN = "a100-80gb", "parvagpu"
SLICES = 7
# torch's default of its time: networks of 1x1 convolutions are faster than the fp32 peak allows.
PRECISION = "tf32"
OUT_OF_MEMORY = "out-of-memory"


def _images(family: str, variant: str, sizes: Mapping[str, int] | None = None) -> PublicModel:
    return PublicModel(family, variant, INFERENCE, 3 * 224 * 224, sizes=sizes)


MODELS = {
    # BERT-large over 128 tokens, by upstream's scripts/dl_infer_runtime.py.
    "bert": PublicModel("transformer_encoder", "bert-large-t128", INFERENCE, 128),
    **{f"densenet{n}": _images("densenet", f"{n}-s224") for n in (121, 169, 201)},
    # With 224 x 224 images like the others, not its 299.
    "inceptionv3": _images("inception", "v3-s224", {"narrowing": 1, "side": 224}),
    "mobilenetv2": _images("mobilenet", "v2-s224"),
    **{f"resnet{n}": _images("resnet", f"{n}-s224") for n in (50, 101, 152)},
    **{f"vgg{n}": _images("vgg", f"{n}-s224") for n in (16, 19)},
}
COLUMNS = {"Mig instance": int, "Batch size": int, "Workload Number": int, "Throughput": float}
MODEL = "model"  # a column of the tidied table; upstream has a file per model


def read(path: Path, imported: Imported, graphs: GraphCache) -> None:
    """Read the tidied table, or upstream's files, each named after its model."""
    expected = "parvagpu_tidy.csv.gz, or upstream's prof_data/<model>.csv"
    patterns = ("*tidy.csv*", "prof_data/*.csv", "*.csv")
    files = []
    for file in find_files(path, patterns, expected):
        name = file.name.split(".")[0]
        rows = read_csv(file, COLUMNS | ({} if name in MODELS else {MODEL: str}))
        named = rows if MODEL in rows.columns else rows.assign(model=name)
        files.append(named.assign(file=str(file)))
    _add(pd.concat(files), imported, graphs)


def _add(rows: pd.DataFrame, imported: Imported, graphs: GraphCache) -> None:
    """Add all files' rows, single processes first: another file may contain those."""
    solo_s: dict[tuple[str, int], float] = {}
    columns = rows[["file", MODEL, *COLUMNS]].sort_values("Workload Number", kind="stable")
    for file, model, slices, batch_size, processes, per_s in columns.itertuples(index=False):
        if not (1 <= slices <= SLICES and processes >= 1 and batch_size >= 1 and per_s >= 0):
            raise TableError(
                f"{file}: {per_s} samples/s of {processes} processes at batch {batch_size} in "
                f"{slices} of {SLICES} slices cannot be; {DOCS}"
            )
        if model not in MODELS:
            imported.skip("a model that is none of ParvaGPU's eleven")
            continue
        job_id = f"parvagpu/{model}/b{batch_size}"
        add_job(imported, graphs, job_id, MODELS[model], batch_size=batch_size, precision=PRECISION)
        # Throughput is per process; the latency column is its inverse, rounded to milliseconds.
        step_s = batch_size / per_s if per_s > 0 else None
        if processes == 1:
            if step_s is not None:
                solo_s[job_id, slices] = step_s
            imported.execution(
                job_id, DEVICE, campaign=CAMPAIGN, share=slices / SLICES, sharing_mode="mig",
                step_time_median_s=step_s, failure="" if step_s else OUT_OF_MEMORY,
            )  # fmt: skip
        else:
            member = _member(job_id, slices, step_s, solo_s.get((job_id, slices)))
            shares = [Share(slices / SLICES, "mig-mps")] * processes
            imported.colocation(
                colocation_id([job_id] * processes, DEVICE, shares), [member] * processes, DEVICE,
                campaign=CAMPAIGN,
            )  # fmt: skip


def _member(job_id: str, slices: int, step_s: float | None, solo_s: float | None) -> Row:
    return {
        "job_id": job_id,
        "share": slices / SLICES,
        "sharing_mode": "mig-mps",
        "step_time_median_s": step_s,
        "solo_step_time_s": solo_s,
        "fits": step_s is not None,
        "failure": "" if step_s else OUT_OF_MEMORY,
    }
