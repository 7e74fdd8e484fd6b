"""Pollux (OSDI 2021): a training step on 1 to 64 T4s, by placement and batch size per device."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from presage.errors import TableError
from presage.pipelines.importers.imported import Imported, Origin
from presage.pipelines.importers.public_models.graph_cache import GraphCache
from presage.pipelines.importers.public_models.public_job import PublicModel, add_job
from presage.pipelines.importers.published_file import DOCS, find_files, read_csv

ORIGIN = Origin("pollux", "https://github.com/petuum/adaptdl, simulator/traces/", "Apache-2.0")
DEVICE, CAMPAIGN = "t4", "pollux"
MODELS = {
    "bert": PublicModel("transformer_encoder", "bert-base-t384", "adamw", 384),
    "cifar10": PublicModel("resnet", "18-s32", "sgd", 3 * 32 * 32),
    "deepspeech2": PublicModel("deepspeech2", "h800-t200", "sgd", 161 * 200),
    "imagenet": PublicModel("resnet", "50-s224", "sgd", 3 * 224 * 224),
    "ncf": PublicModel("neumf", "ml1m", "adam", 2),
    "yolov3": PublicModel("yolov3", "s416", "sgd", 3 * 416 * 416),
}
_TIMES = {"local_bsz": int, "step_time": float, "sync_time": float}
PLACEMENTS = {"placement": str, **_TIMES}
SCALABILITY = {"num_nodes": int, "num_replicas": int, **_TIMES}
FILE = re.compile(r"(?:pollux_t4_(?P<model>\w+)_)?(?P<kind>placements|scalability)\.csv(?:\.gz)?")

EXPECTED = (
    "pollux_t4_<model>_placements.csv and _scalability.csv, or upstream's two in a folder <model>"
)


def read(path: Path, imported: Imported, graphs: GraphCache) -> None:
    """Read files named after their model, or upstream's in a folder of that name."""
    for file in _files(path):
        match = FILE.fullmatch(file.name)
        model = (match["model"] or file.parent.name) if match else ""
        if match is None or model not in MODELS:
            raise TableError(
                f"{file}: is of none of the models {', '.join(MODELS)}, expected {EXPECTED}; {DOCS}"
            )
        columns = PLACEMENTS if match["kind"] == "placements" else SCALABILITY
        for row in read_csv(file, columns).to_dict("records"):
            _add(row, model, file, imported, graphs)


def _files(path: Path) -> list[Path]:
    """Return a folder's files of both kinds; either may be missing."""
    found = [*path.rglob("*placements.csv*"), *path.rglob("*scalability.csv*")]
    measured = sorted(file for file in found if file.is_file() and file.suffix != ".dvc")
    return measured or find_files(path, ("*placements.csv*", "*scalability.csv*"), EXPECTED)


def _add(
    row: Mapping[Any, Any], model: str, file: Path, imported: Imported, graphs: GraphCache
) -> None:
    job_id = f"pollux/{model}/b{row['local_bsz']}"
    if row["step_time"] <= 0 or row["sync_time"] < 0 or row["local_bsz"] < 1:
        raise TableError(f"{file}: a step of {row['step_time']} s at {job_id} cannot be; {DOCS}")
    add_job(imported, graphs, job_id, MODELS[model], batch_size=row["local_bsz"])
    where = _placement(row, file)
    imported.scale_out(
        job_id, DEVICE, campaign=CAMPAIGN, step_time_s=row["step_time"],
        sync_time_s=row["sync_time"], **where,
    )  # fmt: skip
    if where["devices"] == 1:
        imported.execution(job_id, DEVICE, campaign=CAMPAIGN, step_time_median_s=row["step_time"])


def _placement(row: Mapping[Any, Any], file: Path) -> dict[str, Any]:
    """Return nodes, devices and placement; the digits of "112" are devices of three nodes.

    The scalability table does not contain the spread of the devices over the nodes.
    """
    if "placement" not in row:
        return {"nodes": row["num_nodes"], "devices": row["num_replicas"], "placement": ""}
    digits = row["placement"]
    if not re.fullmatch(r"[1-9]+", digits):
        raise TableError(f"{file}: placement {digits!r} is no digits of devices; {DOCS}")
    return {
        "nodes": len(digits),
        "devices": sum(map(int, digits)),
        "placement": " ".join(digits),
    }
