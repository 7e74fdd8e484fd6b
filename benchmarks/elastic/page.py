"""The page docs/benchmarks/elastic.md."""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.elastic.bars import bar_table, load_note, percentile
from benchmarks.elastic.peer_page import peer_section


def page(rows: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of the page."""
    yield "# Cost of elastic training"
    yield ""
    yield "Pauses of [elastic jobs](../jobs/elastic.md) when their number of workers changes, also"
    yield "under torchrun and torchft, and the time of a step without changes. Written by"
    yield f"`python -m benchmarks.elastic` on {os.cpu_count()} CPU cores, without a GPU. Workers"
    yield "are processes of one machine; the network is loopback. The model has 400,000 parameters"
    yield "(1.6 MB) and SGD with momentum. Measurements to be compared alternate."
    yield ""
    yield from bar_table(rows)
    yield from _pauses(rows["planned"], rows["killed"])
    yield from peer_section(rows["peers"]["result"])
    yield from _steps(rows["step_time"])
    yield from _sums(rows["sums"])
    yield "## What was not measured?"
    yield ""
    yield "- NCCL and GPUs, more than one machine, states of gigabytes, speed-up past two workers."
    yield "- Losses and samples: tests check them. After the faults in `tests/training/`, losses"
    yield "  agree with those of an uninterrupted job to 1e-4 (bitwise equal parameters with"
    yield "  `deterministic`), and each sample of an epoch is committed once."


def _pauses(planned_row: dict[str, Any], killed_row: dict[str, Any]) -> Iterator[str]:
    planned, killed = planned_row["result"], killed_row["result"]
    yield "## How long does a change pause a job?"
    yield ""
    yield "From the last commit before a change to the first one after it, less the median step."
    yield "After `kill -9` of a random member it is counted from the kill. A negative pause is a"
    yield "first step that took less than the median step."
    yield ""
    yield "| change | repeats | p50 ms | p90 ms | p99 ms | max ms | hangs |"
    yield "|---|---|---|---|---|---|---|"
    names = {"grow": "2 to 3 workers", "shrink": "3 to 2 workers"}
    for kind, values in planned.items():
        yield _row(names[kind], values, 0)
    yield _row("all planned changes", [v for values in planned.values() for v in values], 0)
    for size, one in killed.items():
        yield _row(f"kill -9, {size} to {int(size) - 1} workers", one["pauses"], one["hangs"])
    together = [v for one in killed.values() for v in one["pauses"]]
    yield _row("all kills", together, sum(one["hangs"] for one in killed.values()))
    yield ""
    yield load_note([*planned_row["load"], *killed_row["load"]])
    yield ""


def _row(name: str, values: Sequence[float], hangs: int) -> str:
    shown = [percentile(values, share) * 1000 for share in (0.5, 0.9, 0.99, 1.0)]
    return f"| {name} | {len(values)} | {' | '.join(f'{v:.0f}' for v in shown)} | {hangs} |"


def _steps(row: dict[str, Any]) -> Iterator[str]:
    found = row["result"]
    yield "## What does it cost when nothing changes?"
    yield ""
    yield "Step of two workers, against DistributedDataParallel over gloo: median elapsed time, and"
    yield "processor time of all threads of a worker, in milliseconds. Each cell is the median of"
    yield "the rounds, with their range."
    yield ""
    yield "| | elapsed | processor |"
    yield "|---|---|---|"
    yield f"| elastic | {_times(found['elastic'])} |"
    yield f"| DDP | {_times(found['ddp'])} |"
    yield ""
    yield load_note(row["load"])
    yield "DDP sends gradients while the backward pass computes the others, and has threads of its"
    yield "own for that. The elastic job sends them in the thread that trains, after the pass."
    yield "In another run, at a load of 5.3 to 6.1 on two cores, a step of the elastic job took"
    yield "15.1 ms and one of DDP 8.4 ms."
    yield ""


def _sums(row: dict[str, Any]) -> Iterator[str]:
    yield "## How fast is the ring?"
    yield ""
    yield "Sum of 4 MB over TCP, as above."
    yield ""
    yield "| workers | | elapsed | processor |"
    yield "|---|---|---|---|"
    for size, rows in row["result"].items():
        for name, values in rows.items():
            yield f"| {size} | {name} | {_times(values)} |"
    yield ""
    yield load_note(row["load"])
    yield ""


def _times(values: Sequence[Sequence[float]]) -> str:
    return " | ".join(_range(column) for column in zip(*values, strict=True))


def _range(values: Sequence[float]) -> str:
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{middle * 1000:.1f} ({low * 1000:.1f} to {high * 1000:.1f})"
