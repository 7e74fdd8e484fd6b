"""Lucid (ASPLOS 2023): pairs of training jobs on one RTX 3090, and each job solo."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from presage.errors import TableError
from presage.pipelines.importers.imported import Imported, Origin
from presage.pipelines.importers.public_models.graph_cache import GraphCache
from presage.pipelines.importers.public_models.public_job import PublicModel, add_job
from presage.pipelines.importers.published_file import find_files, read_csv
from presage.pipelines.profiling.running.work import Row, colocation_id

ORIGIN = Origin(
    "lucid", "https://github.com/S-Lab-System-Group/Lucid, simulation/", "non-commercial"
)
DEVICE, CAMPAIGN = "rtx-3090", "lucid"
SOLO_FILES, PAIR_FILES = ("solo.csv*", "single_data.csv*"), ("pairs.csv*", "colocate_info.csv*")
MIB = 2**20
_S32, _S224 = 3 * 32 * 32, 3 * 224 * 224
# The jobs on ImageNet step on one batch of random numbers that stays on the device.
MODELS = {
    ("BERT", "SQuAD"): PublicModel("transformer_encoder", "bert-base-t384", "adamw", 384),
    ("DCGAN", "LSUN"): PublicModel("dcgan", "w64-s64", "adam", 3 * 64 * 64),
    ("EfficientNet", "CIFAR-10"): PublicModel("efficientnet", "b0-s32", "sgd", _S32),
    ("LSTM", "Wikitext2"): PublicModel("lstm_lm", "w200-d2-v33k", "sgd", 35),
    ("MobileNetV2", "CIFAR-10"): PublicModel("mobilenet", "v2-s32", "sgd", _S32),
    # Small by upstream's profile/main_co.py and main_single.py; the tables do not say it.
    ("MobileNetV3", "ImageNet"): PublicModel(
        "mobilenet_v3", "small-s224", "sgd", _S224, loads_data=False
    ),
    ("NeuMF", "MovieLens"): PublicModel("neumf", "ml1m", "sgd", 2),
    ("PPO", "LunarLander"): PublicModel("ppo", "lunarlander", "adam", 8, loads_data=False),
    ("PointNet", "ShapeNet"): PublicModel("pointnet", "shapenet-p2500", "adam", 3 * 2500),
    ("ResNet18", "CIFAR-10"): PublicModel("resnet", "18-s32", "sgd", _S32),
    ("ResNet50", "ImageNet"): PublicModel("resnet", "50-s224", "sgd", _S224, loads_data=False),
    ("TD3", "BipedalWalker"): PublicModel("td3", "bipedalwalker", "adam", 24, loads_data=False),
    ("Transformer", "Multi30k"): PublicModel("seq2seq_transformer", "base-t32", "adam", 64),
    ("VGG", "CIFAR-10"): PublicModel("vgg", "11-s32", "sgd", _S32),
}
# Their speed counts calls that play thousands of game steps before training, and in pairs it is
# always exactly 1.000.
PLACEHOLDERS = ("PPO", "TD3")

SOLO = {"model": str, "dataset": str, "batchsize": int, "amp": int, "speed": float,
        "gpu_util": float, "gmem": float}  # fmt: skip
_MEMBER = {"model": str, "dataset": str, "batchsize": int, "amp": int, "speed": float}
PAIRS = {
    **{f"{name}{member}": kind for member in (1, 2) for name, kind in _MEMBER.items()},
    "gpu_util": float,
}


def read(path: Path, imported: Imported, graphs: GraphCache) -> None:
    """Read a folder with both tables, by their tidied names or by upstream's.

    A single file is not enough: without the solo table, slowdowns have no step time.
    """
    if path.is_file() and not any(fnmatch(path.name, name) for name in (*SOLO_FILES, *PAIR_FILES)):
        raise TableError(
            f"{path}: not a folder of Lucid's tables; use the folder with solo.csv and "
            "pairs.csv, or upstream's single_data.csv and colocate_info.csv"
        )
    folder = path.parent if path.is_file() else path
    solo = find_files(folder, SOLO_FILES, "solo.csv or single_data.csv")
    together = find_files(folder, PAIR_FILES, "pairs.csv")
    step_s = {}
    for row in (row for file in solo for row in read_csv(file, SOLO).to_dict("records")):
        if (job_id := _describe(row, "", imported, graphs)) is not None:
            step_s[job_id] = _add_solo(row, job_id, imported)
    for row in (row for file in together for row in read_csv(file, PAIRS).to_dict("records")):
        _add_pair(row, [_describe(row, member, imported, graphs) for member in "12"], step_s,
                  imported)  # fmt: skip


def _describe(
    row: Mapping[Any, Any], member: str, imported: Imported, graphs: GraphCache
) -> str | None:
    model, dataset = row[f"model{member}"], row[f"dataset{member}"]
    if (model, dataset) not in MODELS:
        return None
    batch_size, precision = row[f"batchsize{member}"], "fp16" if row[f"amp{member}"] else "fp32"
    job_id = f"lucid/{model}-{dataset}/b{batch_size}" + ("/amp" if row[f"amp{member}"] else "")
    add_job(imported, graphs, job_id, MODELS[model, dataset], batch_size=batch_size,
            precision=precision)  # fmt: skip
    return job_id


def _add_solo(row: Mapping[Any, Any], job_id: str, imported: Imported) -> float | None:
    """Add the execution; return its step time, or None if the source's is not of training."""
    step_s = row["batchsize"] / row["speed"] if row["speed"] > 0 else None
    if row["model"] in PLACEHOLDERS:
        imported.note("step time left out: PPO and TD3 time calls that play the game first")
        step_s = None
    imported.execution(
        job_id, DEVICE, campaign=CAMPAIGN, step_time_median_s=step_s,
        compute_utilization=row["gpu_util"] / 100, memory_peak_bytes=int(row["gmem"] * MIB),
    )  # fmt: skip
    return step_s


def _add_pair(
    row: Mapping[Any, Any],
    job_ids: list[str | None],
    step_s: dict[str, float | None],
    imported: Imported,
) -> None:
    known = [job_id for job_id in job_ids if job_id in step_s and job_id is not None]
    speeds = [row["speed1"], row["speed2"]]
    if len(known) < 2:
        imported.skip("a job without a solo measurement, or that is not one of Lucid's")
    elif min(speeds) <= 0:
        imported.skip("a speed that is not above 0")
    else:
        members: list[Row] = [
            {"job_id": job_id, "device_utilization": row["gpu_util"] / 100}
            | _times(step_s[job_id], speed, imported)
            for job_id, speed in zip(known, speeds, strict=True)
        ]
        imported.colocation(colocation_id(known, DEVICE), members, DEVICE, campaign=CAMPAIGN)


def _times(solo_s: float | None, speed: float, imported: Imported) -> Row:
    if solo_s is None:
        imported.note("slowdown left out: PPO and TD3 have placeholders of exactly 1.000")
        return {}
    return {"solo_step_time_s": solo_s, "step_time_median_s": solo_s / speed}
