"""Commits of a training job, and the pauses between them.

Each worker writes a line to its log for each step that it commits. The generation of a commit is
the number of the group of workers that made it, and grows with each change of the group.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, TextIO


class Commit(NamedTuple):
    """Committed step of a worker."""

    at_s: float  # time.monotonic(), which all processes of a machine share
    generation: int
    step: int
    size: int  # workers of the generation


def write_commit(log: TextIO, generation: int, step: int, size: int) -> None:
    """Append a commit to the log of a worker."""
    log.write(f"{time.monotonic():.6f} {generation} {step} {size}\n")


def read_commits(folder: Path) -> list[Commit]:
    """Return the commits of all workers, by time."""
    return sorted(one for path in folder.glob("*.log") for one in _read(path))


def last_commit(path: Path) -> Commit | None:
    """Return the last commit of a worker, None if there is none."""
    if not path.exists():
        return None
    with path.open("rb") as log:
        log.seek(max(0, path.stat().st_size - 200))
        lines = log.read().decode().split("\n")[:-1]
    return _parse(lines[-1]) if lines else None


def pause_s(commits: Sequence[Commit], generation: int) -> float:
    """Return the time from the last commit before a generation to its first one, less a step."""
    last_s = max(one.at_s for one in commits if one.generation < generation)
    return _first_times(commits, generation)[0] - last_s - step_s(commits, generation)


def pause_after_s(commits: Sequence[Commit], generation: int, killed_s: float) -> float:
    """Return the time from a kill to the first commit of the next generation, less a step."""
    return _first_times(commits, generation)[0] - killed_s - step_s(commits, generation)


def lost_s(
    commits: Sequence[Commit], before: int, until: int, killed_s: float | None = None
) -> float:
    """Return the time without progress from one generation to another, over those between them.

    It begins at the last commit of generation ``before``, or at a kill.
    """
    numbers = sorted({one.generation for one in commits if before < one.generation <= until})
    first, *others = numbers
    begin = pause_s(commits, first)
    if killed_s is not None:
        begin = pause_after_s(commits, first, killed_s)
    return begin + sum(pause_s(commits, number) for number in others)


def step_s(commits: Sequence[Commit], generation: int) -> float:
    """Return the median time of a step of a generation."""
    gaps = [b - a for a, b in pairwise(_first_times(commits, generation))]
    return statistics.median(gaps) if gaps else 0.0


def _first_times(commits: Sequence[Commit], generation: int) -> list[float]:
    """Return the time at which the first worker committed each step of a generation."""
    times: dict[int, float] = {}
    for one in commits:
        if one.generation == generation:
            times[one.step] = min(one.at_s, times.get(one.step, one.at_s))
    return sorted(times.values())


def _read(path: Path) -> Iterator[Commit]:
    for line in path.read_text().split("\n")[:-1]:
        yield _parse(line)


def _parse(line: str) -> Commit:
    at_s, generation, step, size = line.split()
    return Commit(float(at_s), int(generation), int(step), int(size))
