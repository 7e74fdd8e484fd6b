"""Gavel's two layouts, upstream's JSON and the tidied tables, as the same measurements."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from presage.errors import TableError
from presage.pipelines.importers.published_file import MEND, find_files, read_csv, read_json

ISOLATED = {"source": str, "gpu": str, "placement": str, "job": str, "num_gpus": int,
            "steps_per_sec": float}  # fmt: skip
PAIRS = {"source": str, "gpu": str, "job_a": str, "job_b": str, "iso_a": float, "iso_b": float,
         "co_a": float, "co_b": float}  # fmt: skip
UPSTREAM = "Gavel's simulation_throughputs.json: device -> job -> steps per second"
NAMES = {"simulation_throughputs": "sim_v2", "oracle_throughputs_v2": "sim_v2"}


@dataclass(frozen=True, slots=True)
class Alone:
    """A job on devices of its own."""

    campaign: str
    gpu: str
    placement: str
    job: str
    devices: int
    steps_per_s: float


@dataclass(frozen=True, slots=True)
class Pair:
    """Two jobs on one device; steps per second of each alone and together, 0 if infeasible."""

    campaign: str
    gpu: str
    jobs: tuple[str, str]
    alone: tuple[float, float]
    together: tuple[float, float]


def measurements(path: Path) -> Iterator[tuple[Path, list[Alone | Pair]]]:
    """Every file at ``path`` with what it holds.

    Raises
    ------
    TableError
        There is no file of either layout, or it is damaged.
    """
    expected = f"{UPSTREAM}, or pairs.csv and isolated.csv"
    for file in find_files(path, ("*throughputs*.json*", "pairs.csv*", "isolated.csv*"), expected):
        if ".json" in file.name:
            yield file, list(_upstream(file))
            continue
        beside = [] if path.is_file() else sorted(file.parent.glob("isolated.csv*"))
        for table in dict.fromkeys([file, *beside]):
            yield table, list(_tidied(table))


def _tidied(path: Path) -> Iterator[Alone | Pair]:
    if path.name.startswith("isolated"):
        for row in read_csv(path, ISOLATED).to_dict("records"):
            yield Alone(
                f"gavel-{row['source']}", row["gpu"], row["placement"], row["job"],
                row["num_gpus"], row["steps_per_sec"],
            )  # fmt: skip
    else:
        for row in read_csv(path, PAIRS).to_dict("records"):
            yield Pair(
                f"gavel-{row['source']}", row["gpu"], (row["job_a"], row["job_b"]),
                (row["iso_a"], row["iso_b"]), (row["co_a"], row["co_b"]),
            )  # fmt: skip


def _upstream(path: Path) -> Iterator[Alone | Pair]:
    stem = path.name.split(".")[0]
    campaign = f"gavel-{NAMES.get(stem, stem)}"
    content = read_json(path, UPSTREAM)
    try:
        for name, jobs in content.items():
            gpu, _, spread = name.partition("_")
            yield from _of_device(campaign, gpu, spread or "consolidated", jobs)
    except (AttributeError, LookupError, SyntaxError, TypeError, ValueError) as error:
        raise TableError(f"{path}: not {UPSTREAM} ({error}); {MEND}") from error


def _of_device(
    campaign: str, gpu: str, spread: str, jobs: dict[str, Any]
) -> Iterator[Alone | Pair]:
    alone = {ast.literal_eval(key): float(beside["null"]) for key, beside in jobs.items()}
    for (job, devices), speed in alone.items():
        if not isinstance(job, str) or devices < 1:
            raise ValueError(f"{job!r} on {devices!r} devices is no job")
        yield Alone(campaign, gpu, spread, job, devices, speed)
    seen = set()
    for key, beside in jobs.items():
        first = ast.literal_eval(key)
        for other, speeds in beside.items():
            second = None if other == "null" else ast.literal_eval(other)
            # Every pair is there from both sides, on a device spread over nodes once more.
            if second is None or (second, first) in seen or spread != "consolidated":
                continue
            seen.add((first, second))
            if first[1] == second[1] == 1:
                both = (float(speeds[0]), float(speeds[1]))
                yield Pair(
                    campaign, gpu, (first[0], second[0]), (alone[first], alone[second]), both
                )
