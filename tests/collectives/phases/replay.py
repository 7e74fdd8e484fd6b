"""Replay of recorded AllReduces to an estimator."""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass, field
from pathlib import Path

from presage.collectives.phases.estimator import PhaseEstimator, Phases

TRACES = Path(__file__).parent / "traces"
Record = tuple[int, float, int]


def read_trace(name: str) -> list[Record]:
    """Return number, start and size of each recorded AllReduce."""
    with (TRACES / f"{name}.csv").open() as file:
        return [
            (int(row["number"]), float(row["start_s"]), int(row["size_bytes"]))
            for row in csv.DictReader(file)
        ]


@dataclass
class Replay:
    """Estimator whose clock is the newest observed start."""

    options: dict[str, object] = field(default_factory=dict)
    now_s: float = -math.inf

    def __post_init__(self) -> None:
        self.estimator = PhaseEstimator(clock=lambda: self.now_s, **self.options)  # type: ignore[arg-type]

    def observe(self, *records: Record) -> Phases | None:
        """Observe AllReduces, and return the phases after the last one."""
        for record in records:
            self.estimator.observe(*record)
            self.now_s = max(self.now_s, record[1])
        return self.estimator.estimate()


@dataclass(frozen=True)
class Score:
    """How well the arrivals of the next ``horizon`` iterations were predicted.

    Attributes
    ----------
    first : int or None
        Number of AllReduces before the first estimate.
    calls : set of int
        Numbers of AllReduces of an iteration that were found.
    predicted : float
        Share of the estimates that were not None, after the first one.
    covered : float
        Share of the arrivals that were within the margin.
    margin : float
        Mean margin over the period.
    """

    first: int | None
    calls: set[int]
    predicted: float
    covered: float
    margin: float


def score(records: list[Record], horizon: int = 1, **options: object) -> Score:
    """Estimate after every AllReduce, and compare with what arrived."""
    replay = Replay({"horizon": horizon, **options})
    first, calls, hits, total, margins, asked = None, set(), 0, 0, [], 0
    for index, record in enumerate(records):
        phases = replay.observe(record)
        asked += first is not None
        if phases is None:
            continue
        first = index + 1 if first is None else first
        count = len(phases.calls)
        calls.add(count)
        margins.append(phases.margin_s / phases.period_s)
        for number, start_s, _ in records[index + 1 : index + 1 + horizon * count]:
            hits += abs(phases.arrival_s(number) - start_s) <= phases.margin_s
            total += 1
    predicted = (len(margins) - 1) / asked if asked else 0.0
    margin = sum(margins) / len(margins) if margins else float("nan")
    return Score(first, calls, predicted, hits / total if total else 0.0, margin)
