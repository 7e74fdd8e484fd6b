"""Elastic jobs that share devices, written to docs/benchmarks/elastic_sharing.md.

Run ``python -m benchmarks.elastic_sharing LUCID``. LUCID is the folder that ``presage import
lucid`` wrote: measured slowdowns and memory. Traces are those of PRESAGE_DATASETS
(``../shared/datasets``). Outcomes are stored in ``--output`` and not computed again.
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

from benchmarks.elastic_sharing.page import page
from benchmarks.elastic_sharing.runs import RUNS, Outcome, Run, simulated
from benchmarks.markdown import write_page

PAGE = Path("docs/benchmarks/elastic_sharing.md")


def main() -> None:
    """Simulate what is missing, and write the page."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.elastic_sharing",
        description=(__doc__ or "").split("\n", maxsplit=1)[0],
    )
    parser.add_argument("lucid", type=Path)
    parser.add_argument("--output", type=Path, default=Path(".cache/elastic_sharing"))
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    outcomes = dict(outcomes_of(RUNS, args.lucid, args.output, args.workers))
    write_page(PAGE, page(outcomes))


def outcomes_of(
    runs: Sequence[Run], lucid: Path, output: Path, workers: int
) -> Iterator[tuple[Run, Outcome]]:
    """Yield each run with its outcome."""
    paths = {run: output / ("_".join(map(str, asdict(run).values())) + ".json") for run in runs}
    missing = [run for run in runs if not paths[run].is_file()]
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        done = pool.map(partial(simulated, lucid=lucid), missing)
        for i, (run, outcome) in enumerate(zip(missing, done, strict=True), 1):
            paths[run].write_text(json.dumps(outcome))
            print(f"{i}/{len(missing)} {run}", flush=True)
    for run in runs:
        yield run, json.loads(paths[run].read_text())


if __name__ == "__main__":
    main()
