"""Page with the results of the replays: python -m benchmarks.slurm.page RESULTS.jsonl."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.slurm.replay import GPUS, LIMITS, NODES
from benchmarks.slurm.workload import ERROR, USERS

PAGE = Path(__file__).parents[2] / "docs" / "benchmarks" / "slurm.md"
_BEGIN = """# Waiting times in Slurm by time limits

Jobs of 1, 2, 4 or 8 GPUs run in a real Slurm 22.05 of {nodes} nodes with {gpus} GPUs each, as
processes on one machine whose clock runs {speed:g} times faster. Run times are lognormal around ten
minutes. Users request 24 hours (default), the next usual time above 1.5 times the true one
(rounded), or four times the true one. `job_submit.lua`, the bridge's answers and the watcher are
those of [the guide](../schedulers/slurm.md); the predicted limit is a calibrated 90 % quantile
whose error has a standard deviation of {error:g} in the logarithm. The limit "true" is the run
time, rounded up, and a minute.

Mean and 99th percentile of the wait in minutes, for each replay, and the mean of the same jobs in
our simulator with `backfill:reserve=all`:

| users | seed | limits | jobs | mean wait | 99th percentile | simulated mean wait |
|---|---:|---|---:|---:|---:|---:|
"""
_ENOUGH_SEEDS = 5
_FEW = """
These are first results, on a machine that was busy with other work. So few replays say in which
direction limits work, and not how much.
"""
_END = """
Written by `python -m benchmarks.slurm` and `python -m benchmarks.slurm.page`.
"""


def page(rows: Sequence[dict[str, Any]]) -> str:
    """Return the page of results."""
    text = _BEGIN.format(nodes=NODES, gpus=GPUS, speed=rows[0]["speed"], error=ERROR)
    ordered = sorted(
        (row for row in rows if row["backfill"]),
        key=lambda row: (list(USERS).index(row["users"]), row["seed"], LIMITS.index(row["limits"])),
    )
    for row in ordered:
        text += (
            f"| {row['users']} | {row['seed']} | {row['limits']} | {row['jobs']} "
            f"| {row['mean_min']:.1f} | {row['p99_min']:.1f} | {row['simulated_mean_min']:.1f} |\n"
        )
    if len({row["seed"] for row in rows}) < _ENOUGH_SEEDS:
        text += _FEW
    return text + _END


def main() -> None:
    """Write the page of the results that the command line names."""
    rows = [json.loads(line) for line in Path(sys.argv[1]).read_text().splitlines()]
    PAGE.write_text(page(rows))


if __name__ == "__main__":
    main()
