"""Readers of Gavel's two layouts, upstream's JSON and the tidied tables."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from presage.errors import TableError
from presage.pipelines.importers.published_file import DOCS, find_files, read_csv, read_json

ISOLATED = {"source": str, "gpu": str, "placement": str, "job": str, "num_gpus": int,
            "steps_per_sec": float}  # fmt: skip
PAIRS = {"source": str, "gpu": str, "job_a": str, "job_b": str, "iso_a": float, "iso_b": float,
         "co_a": float, "co_b": float}  # fmt: skip
UPSTREAM = "Gavel's simulation_throughputs.json: device -> job -> steps per second"
NAMES = {"simulation_throughputs": "sim_v2", "oracle_throughputs_v2": "sim_v2"}


@dataclass(frozen=True, slots=True)
class SoloRun:
    """A job that has its devices exclusively."""

    campaign: str
    gpu: str
    placement: str
    job: str
    devices: int
    steps_per_s: float


@dataclass(frozen=True, slots=True)
class Pair:
    """Two jobs on one device; solo and co-located steps per second of each, 0 if infeasible."""

    campaign: str
    gpu: str
    jobs: tuple[str, str]
    solo: tuple[float, float]
    together: tuple[float, float]


def measurements(path: Path) -> Iterator[tuple[Path, list[SoloRun | Pair]]]:
    """Yield every file at ``path`` with its measurements.

    Raises
    ------
    TableError
        There is no file of either layout, or it is corrupt.
    """
    expected = f"{UPSTREAM}, or pairs.csv and isolated.csv"
    for file in find_files(path, ("*throughputs*.json*", "pairs.csv*", "isolated.csv*"), expected):
        if ".json" in file.name:
            yield file, list(_upstream(file))
            continue
        isolated = [] if path.is_file() else sorted(file.parent.glob("isolated.csv*"))
        for table in dict.fromkeys([file, *isolated]):
            yield table, list(_tidied(table))


def _tidied(path: Path) -> Iterator[SoloRun | Pair]:
    if path.name.startswith("isolated"):
        for row in read_csv(path, ISOLATED).to_dict("records"):
            yield SoloRun(
                f"gavel-{row['source']}", row["gpu"], row["placement"], row["job"],
                row["num_gpus"], row["steps_per_sec"],
            )  # fmt: skip
    else:
        for row in read_csv(path, PAIRS).to_dict("records"):
            yield Pair(
                f"gavel-{row['source']}", row["gpu"], (row["job_a"], row["job_b"]),
                (row["iso_a"], row["iso_b"]), (row["co_a"], row["co_b"]),
            )  # fmt: skip


def _upstream(path: Path) -> Iterator[SoloRun | Pair]:
    stem = path.name.split(".")[0]
    campaign = f"gavel-{NAMES.get(stem, stem)}"
    content = read_json(path, UPSTREAM)
    try:
        for name, jobs in content.items():
            gpu, _, spread = name.partition("_")
            yield from _read_device(campaign, gpu, spread or "consolidated", jobs)
    except (AttributeError, LookupError, SyntaxError, TypeError, ValueError) as error:
        raise TableError(f"{path}: not {UPSTREAM} ({error}); {DOCS}") from error


def _read_device(
    campaign: str, gpu: str, spread: str, jobs: dict[str, Any]
) -> Iterator[SoloRun | Pair]:
    solo = {
        ast.literal_eval(key): float(speeds_by_other["null"])
        for key, speeds_by_other in jobs.items()
    }
    for (job, devices), speed in solo.items():
        if not isinstance(job, str) or devices < 1:
            raise ValueError(f"{job!r} on {devices!r} devices is not a job")
        yield SoloRun(campaign, gpu, spread, job, devices, speed)
    trained = set()
    for key, speeds_by_other in jobs.items():
        first = ast.literal_eval(key)
        for other, speeds in speeds_by_other.items():
            second = None if other == "null" else ast.literal_eval(other)
            # Every pair occurs from both sides, and again on devices spread over nodes.
            if second is None or (second, first) in trained or spread != "consolidated":
                continue
            trained.add((first, second))
            if first[1] == second[1] == 1:
                both = (float(speeds[0]), float(speeds[1]))
                yield Pair(campaign, gpu, (first[0], second[0]), (solo[first], solo[second]), both)
