"""Value of forecasts for a cluster, written to docs/benchmarks/forecast_worth.md.

Run ``python -m benchmarks.forecast_worth LUCID RELEASES``. LUCID is the folder that ``presage
import lucid`` wrote, the ground truth of slowdowns and memory on an RTX 3090; RELEASES is the
folder that ``benchmarks/predictors/cross_fitted.py LUCID RELEASES`` wrote. Traces are those of
PRESAGE_DATASETS (``../shared/datasets``). Outcomes are stored in ``--output`` and not computed
again; ``--keep-rows`` writes the page with those of an interrupted run, and keeps the other rows
of the present page.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.forecast_worth.page import page
from benchmarks.forecast_worth.runs import LOADS, NOISES, NOISY, RUNS, SEEDS, TRACES, Run, simulated
from benchmarks.markdown import write_page

PAGE = Path("docs/benchmarks/forecast_worth.md")


def main() -> None:
    """Simulate what is missing, and write the page."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.forecast_worth",
        description=(__doc__ or "").split("\n", maxsplit=1)[0],
    )
    parser.add_argument("lucid", type=Path)
    parser.add_argument("releases", type=Path)
    parser.add_argument("--output", type=Path, default=Path(".cache/forecast_worth"))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument(
        "--keep-rows",
        action="store_true",
        help="Simulate nothing; keep rows of the present page without outcomes.",
    )
    args = parser.parse_args()
    runs = [
        Run(trace, load, policy, forecast, risk, seed)
        for trace in TRACES
        for load in LOADS
        for policy, forecast, risk in RUNS
        for seed in SEEDS
    ] + [
        Run(*NOISY, policy, "oracle", 0.1, seed, noise, bias)
        for policy in ("sjf", "packing")
        for noise, bias in NOISES[1:]
        for seed in SEEDS
    ]
    args.output.mkdir(parents=True, exist_ok=True)
    if args.keep_rows:
        known = [run for run in runs if _path(run, args.output).is_file()]
        outcomes = {run: json.loads(_path(run, args.output).read_text()) for run in known}
        write_page(PAGE, page(outcomes, PAGE.read_text()))
        return
    outcomes = dict(outcomes_of(runs, args.lucid, args.releases, args.output, args.workers))
    write_page(PAGE, page(outcomes))


def _path(run: Run, output: Path) -> Path:
    return output / ("_".join(str(v) for v in asdict(run).values()).replace("/", "-") + ".json")


def outcomes_of(
    runs: Sequence[Run], lucid: Path, releases: Path, output: Path, workers: int
) -> Iterator[tuple[Run, dict[str, Any]]]:
    """Return the outcome of each run."""
    paths = {run: _path(run, output) for run in runs}
    missing = [run for run in runs if not paths[run].is_file()]
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        done = pool.map(simulated, missing, [lucid] * len(missing), [releases] * len(missing))
        for i, (run, outcome) in enumerate(zip(missing, done, strict=True), 1):
            paths[run].write_text(json.dumps(outcome))
            print(f"{i}/{len(missing)} {run}", flush=True)
    for run in runs:
        yield run, json.loads(paths[run].read_text())


if __name__ == "__main__":
    main()
