"""Elastic jobs against jobs of a fixed size, written to docs/benchmarks/elastic_simulation.md.

Run ``python -m benchmarks.elastic_simulation POLLUX``. POLLUX is the folder that ``presage import
pollux`` wrote: the measured speed-up curves. Traces are those of PRESAGE_DATASETS
(``../shared/datasets``). Outcomes are stored in ``--output`` and not computed again;
``--keep-rows`` writes the page with those of an interrupted run, and keeps the other rows and the
CPU times of the present page.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.elastic_simulation.page import page
from benchmarks.elastic_simulation.runs import RUNS, Run, scaling_errors, simulated
from benchmarks.markdown import write_page

PAGE = Path("docs/benchmarks/elastic_simulation.md")


def main() -> None:
    """Simulate what is missing, and write the page."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.elastic_simulation",
        description=(__doc__ or "").split("\n", maxsplit=1)[0],
    )
    parser.add_argument("pollux", type=Path)
    parser.add_argument("--output", type=Path, default=Path(".cache/elastic_simulation"))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument(
        "--keep-rows",
        action="store_true",
        help="Simulate nothing; keep rows of the present page without outcomes, and its times.",
    )
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    if args.keep_rows:
        known = [run for run in RUNS if _path(run, args.output).is_file()]
        outcomes = {run: json.loads(_path(run, args.output).read_text()) for run in known}
        write_page(PAGE, page(outcomes, scaling_errors(args.pollux), PAGE.read_text()))
        return
    outcomes = dict(outcomes_of(RUNS, args.pollux, args.output, args.workers))
    write_page(PAGE, page(outcomes, scaling_errors(args.pollux)))


def _path(run: Run, output: Path) -> Path:
    return output / ("_".join(str(v) for v in asdict(run).values()).replace("/", "-") + ".json")


def outcomes_of(
    runs: Sequence[Run], pollux: Path, output: Path, workers: int
) -> Iterator[tuple[Run, dict[str, Any]]]:
    """Return the outcome of each run."""
    paths = {run: _path(run, output) for run in runs}
    missing = [run for run in runs if not paths[run].is_file()]
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        done = pool.map(partial(simulated, pollux=pollux), missing)
        for i, (run, outcome) in enumerate(zip(missing, done, strict=True), 1):
            paths[run].write_text(json.dumps(outcome))
            print(f"{i}/{len(missing)} {run}", flush=True)
    for run in runs:
        yield run, json.loads(paths[run].read_text())


if __name__ == "__main__":
    main()
