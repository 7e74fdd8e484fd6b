"""Measuring in turns: whatever else the machine does meets all of them alike."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")

# Name of a figure, name of a server -> a value for each round.
Figures = dict[str, dict[str, list[float]]]


def interleaved(rounds: int, turns: Mapping[str, Callable[[], T]]) -> dict[str, list[T]]:
    """Take every turn once a round, every other round backwards."""
    found: dict[str, list[T]] = {name: [] for name in turns}
    for number in range(rounds):
        names = list(turns) if number % 2 == 0 else list(turns)[::-1]
        for name in names:
            found[name].append(turns[name]())
    return found


@dataclass(frozen=True)
class Ratio:
    """Median of the ratios of values of the same rounds, and the smallest and largest."""

    median: float
    least: float
    most: float


def ratio(values: Sequence[float], base: Sequence[float]) -> Ratio:
    found = [a / b for a, b in zip(values, base, strict=True)]
    return Ratio(statistics.median(found), min(found), max(found))
