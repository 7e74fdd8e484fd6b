"""Cost of elastic training, written to docs/benchmarks/elastic.md.

Run ``python -m benchmarks.elastic``: about 10 minutes on two cores. It measures the pause of
planned changes and of kills, the time of a step against DDP over gloo, and the ring against gloo.
Measurements are stored in ``--output`` and not repeated; ``--only NAME`` makes one of them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.elastic.changes import ElasticJob, killed_pauses, planned_pauses
from benchmarks.elastic.page import page
from benchmarks.elastic.workers import (
    BATCH,
    SAMPLES,
    ddp_worker,
    free_ports,
    gloo_sums,
    ring_sums,
    run_together,
)

PAGE = Path("docs/benchmarks/elastic.md")
CHANGES, KILLS, SIZES = 80, 40, (2, 3, 4, 5, 6)
STEPS, ROUNDS, REPEATS = 200, 5, 60
MEGABYTES = 4


def planned() -> dict[str, Any]:
    """Measure joins and leaves."""
    return planned_pauses(CHANGES)


def killed() -> dict[str, Any]:
    """Measure kills, for each number of workers."""
    found = {size: killed_pauses(size, KILLS, seed=size) for size in SIZES}
    return {str(size): {"pauses": one[0], "hangs": one[1]} for size, one in found.items()}


def step_time() -> dict[str, Any]:
    """Measure the time of a step of two workers, in alternating rounds."""
    found: dict[str, list[float]] = {"elastic": [], "ddp": []}
    for _ in range(ROUNDS):
        found["ddp"].append(_ddp_step_s(2))
        found["elastic"].append(_elastic_step_s(2))
    return found


def sums() -> dict[str, Any]:
    """Measure a sum of 4 MB by our ring and by gloo, in alternating rounds."""
    found: dict[str, Any] = {}
    floats = MEGABYTES << 18
    for size in (2, 3):
        rows: dict[str, list[float]] = {"ring": [], "gloo": []}
        for _ in range(ROUNDS):
            ring = run_together(ring_sums, size, free_ports(size), floats, REPEATS)
            rows["ring"].append(statistics.median(ring[5:]))
            with tempfile.TemporaryDirectory() as folder:
                store = f"{folder}/store"
                gloo = run_together(gloo_sums, size, store, floats, REPEATS)
            rows["gloo"].append(statistics.median(gloo[5:]))
        found[str(size)] = rows
    return found


MEASUREMENTS: dict[str, Callable[[], dict[str, Any]]] = {
    "planned": planned, "killed": killed, "step_time": step_time, "sums": sums
}  # fmt: skip


def main() -> None:
    """Measure what is missing, and write the page."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.elastic", description=(__doc__ or "").split("\n", maxsplit=1)[0]
    )
    parser.add_argument("--output", type=Path, default=Path(".cache/elastic"))
    parser.add_argument("--only", choices=MEASUREMENTS)
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    for name, measure in MEASUREMENTS.items():
        path = args.output / f"{name}.json"
        if path.is_file() or args.only not in (None, name):
            continue
        print(f"measuring {name}", flush=True)
        load, start_s = os.getloadavg()[0], time.monotonic()
        result = measure()
        row = {"result": result, "load": [load, os.getloadavg()[0]]}
        path.write_text(json.dumps(row | {"seconds": time.monotonic() - start_s}))
    paths = {name: args.output / f"{name}.json" for name in MEASUREMENTS}
    if all(path.is_file() for path in paths.values()):
        rows = {name: json.loads(path.read_text()) for name, path in paths.items()}
        PAGE.write_text("\n".join(page(rows)) + "\n")


def _ddp_step_s(size: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        times = run_together(ddp_worker, size, f"{folder}/store", STEPS)
    return statistics.median(times[20:])


def _elastic_step_s(size: int) -> float:
    job = ElasticJob(size, epochs=STEPS * BATCH // SAMPLES)
    try:
        job.join()  # without a poll that would take processor time
        commits = job.commits()
    finally:
        job.close()
    times: dict[int, float] = {}
    for at_s, _, step in commits:
        times[step] = min(at_s, times.get(step, at_s))
    ordered = [times[step] for step in sorted(times)][20:STEPS]
    return statistics.median(b - a for a, b in pairwise(ordered))


if __name__ == "__main__":
    main()
