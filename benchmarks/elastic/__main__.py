"""Cost of elastic training, written to docs/benchmarks/elastic.md.

Run ``python -m benchmarks.elastic``: about 40 minutes on two cores. It measures the pause of
planned changes and of kills, the time of a step against DDP over gloo, the ring against gloo, and
pauses of the same job under torchrun and torchft, which are installed in an environment of theirs.
Measurements are stored in ``--output`` and not repeated; ``--only NAME`` makes one of them.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.elastic.changes import ElasticJob, killed_pauses, planned_pauses
from benchmarks.elastic.page import page
from benchmarks.elastic.peers import peers
from benchmarks.elastic.workers import (
    BATCH,
    SAMPLES,
    ddp_worker,
    free_ports,
    gloo_sums,
    ring_sums,
    run_together,
)
from benchmarks.markdown import write_page

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
    found: dict[str, Any] = {"elastic": [], "ddp": []}
    for _ in range(ROUNDS):
        with tempfile.TemporaryDirectory() as folder:
            found["ddp"].append(run_together(ddp_worker, 2, f"{folder}/store", STEPS))
        found["elastic"].append(_elastic_step(2))
    return found


def sums() -> dict[str, Any]:
    """Measure a sum of 4 MB by our ring and by gloo, in alternating rounds."""
    found: dict[str, Any] = {}
    floats = MEGABYTES << 18
    for size in (2, 3):
        rows: dict[str, Any] = {"ring": [], "gloo": []}
        for _ in range(ROUNDS):
            rows["ring"].append(run_together(ring_sums, size, free_ports(size), floats, REPEATS))
            with tempfile.TemporaryDirectory() as folder:
                store = f"{folder}/store"
                rows["gloo"].append(run_together(gloo_sums, size, store, floats, REPEATS))
        found[str(size)] = rows
    return found


MEASUREMENTS: dict[str, Callable[[], dict[str, Any]]] = {
    "planned": planned, "killed": killed, "step_time": step_time, "sums": sums,
    "peers": peers,
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
        write_page(PAGE, page(rows))


def _elastic_step(size: int) -> tuple[float, float]:
    job = ElasticJob(size, epochs=STEPS * BATCH // SAMPLES)
    try:
        job.join()  # without a poll that would take processor time
        elapsed_s, processor_s = json.loads((job.state / "w0.timer").read_text())
    finally:
        job.close()
    return elapsed_s, processor_s


if __name__ == "__main__":
    main()
