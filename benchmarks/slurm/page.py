"""Page with the results of the replays: python -m benchmarks.slurm.page RESULTS.jsonl."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.slurm.replay import GPUS, LIMITS, NODES
from benchmarks.slurm.workload import ERROR, USERS

PAGE = Path(__file__).parents[2] / "docs" / "benchmarks" / "slurm.md"
_BEGIN = """# Waiting times in Slurm by time limits

Jobs of 1, 2, 4 or 8 GPUs run in a real Slurm 22.05 of {nodes} nodes with {gpus} GPUs each, as
processes on one machine whose clock runs {speed:g} times faster. Run times are lognormal around ten
minutes. Users request 24 hours (default), the next usual time above 1.5 times the true one
(rounded), or four times the true one. `job_submit.lua`, the bridge's answers and the watcher are
those of [the guide](../schedulers/slurm.md); the predicted limit is a calibrated 90 % quantile
whose error has a standard deviation of {error:g} in the logarithm.

Mean over the seeds of each replay's mean and 99th percentile of the wait, in minutes:

| users | limits | replays | jobs each | mean wait | 99th percentile |
|---|---|---:|---:|---:|---:|
"""
_END = """
Written by `python -m benchmarks.slurm` and `python -m benchmarks.slurm.page`.
"""


def page(rows: Sequence[dict[str, Any]]) -> str:
    """Return the page of results."""
    text = _BEGIN.format(nodes=NODES, gpus=GPUS, speed=rows[0]["speed"], error=ERROR)
    for user in USERS:
        for limits in LIMITS:
            found = [
                row
                for row in rows
                if (row["users"], row["limits"], row["backfill"]) == (user, limits, True)
            ]
            if found:
                mean = np.mean([row["mean_min"] for row in found])
                p99 = np.mean([row["p99_min"] for row in found])
                jobs = found[0]["jobs"]
                text += f"| {user} | {limits} | {len(found)} | {jobs} | {mean:.1f} | {p99:.1f} |\n"
    return text + _END


def main() -> None:
    """Write the page of the results that the command line names."""
    rows = [json.loads(line) for line in Path(sys.argv[1]).read_text().splitlines()]
    PAGE.write_text(page(rows))


if __name__ == "__main__":
    main()
