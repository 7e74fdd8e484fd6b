"""Sharing with quality of service at scale, written to docs/benchmarks/sharing.md.

Run ``python -m benchmarks.sharing LUCID RELEASES``. LUCID is the folder that ``presage import
lucid`` wrote, the ground truth of slowdowns and memory; RELEASES is the folder that ``python -m
benchmarks.predictors.cross_fitted LUCID RELEASES`` wrote. The trace is Philly's, of
PRESAGE_DATASETS (``../shared/datasets``). Outcomes are stored in ``--output`` and not computed
again.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.markdown import write_page
from benchmarks.sharing.load import load
from benchmarks.sharing.page import page
from benchmarks.sharing.runs import Run, bounds_exceeded, simulated

PAGE = Path("docs/benchmarks/sharing.md")
LOAD = 1.0
LARGE = 1000
GROWTH = (10, 30, 100, 300, LARGE)
POLICIES = {
    "sharing": "sharing",
    "sharing, no SLO checks": "sharing:check_s=86400",
    "exclusive": "best-fit",
}
RISKS, RISK_NODES, SEEDS = (0.05, 0.1, 0.5), 30, (0, 1, 2)
LOADED = (10, 100, 1000)  # nodes of the live controller

RUNS = {
    "large": [Run(LARGE, LOAD, policy, "retrained", 0.1, 0) for policy in POLICIES.values()],
    "growth": [Run(nodes, LOAD, "sharing", "retrained", 0.1, 0) for nodes in GROWTH],
    "risk": [
        Run(RISK_NODES, LOAD, "sharing", "retrained", risk, seed)
        for risk in RISKS
        for seed in SEEDS
    ],
    "small": [
        Run(RISK_NODES, LOAD, policy, "retrained", 0.1, seed)
        for policy in POLICIES.values()
        for seed in SEEDS
    ]
    + [Run(RISK_NODES, LOAD, "sharing", "oracle", 0.1, seed) for seed in SEEDS],
}


def main() -> None:
    """Simulate and measure what is missing, and write the page."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.sharing", description=(__doc__ or "").split("\n", maxsplit=1)[0]
    )
    parser.add_argument("lucid", type=Path)
    parser.add_argument("releases", type=Path)
    parser.add_argument("--output", type=Path, default=Path(".cache/sharing"))
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    runs = list(dict.fromkeys(run for of in RUNS.values() for run in of))
    # Long runs first, to balance the load.
    outcomes = outcomes_of(sorted(runs, key=lambda run: -run.nodes), args)
    loads = [_load(nodes, args.output) for nodes in LOADED]
    exceeded = {risk: bounds_exceeded(risk, args.lucid, args.releases) for risk in RISKS}
    write_page(PAGE, page(RUNS, POLICIES, outcomes, exceeded, loads))


def outcomes_of(runs: Sequence[Run], args: argparse.Namespace) -> dict[Run, dict[str, Any]]:
    """Return the outcome of each run."""
    paths = {
        run: args.output / ("_".join(map(str, asdict(run).values())).replace(":", "-") + ".json")
        for run in runs
    }
    missing = [run for run in runs if not paths[run].is_file()]
    with ProcessPoolExecutor(args.workers, get_context("spawn")) as pool:
        many = len(missing)
        done = pool.map(simulated, missing, [args.lucid] * many, [args.releases] * many)
        for i, (run, outcome) in enumerate(zip(missing, done, strict=True), 1):
            paths[run].write_text(json.dumps(outcome))
            print(f"{i}/{many} {run}", flush=True)
    return {run: json.loads(path.read_text()) for run, path in paths.items()}


def _load(nodes: int, output: Path) -> dict[str, float]:
    path = output / f"load_{nodes}.json"
    if not path.is_file():
        path.write_text(json.dumps(load(nodes, output / "load")))
    found: dict[str, float] = json.loads(path.read_text())
    return found


if __name__ == "__main__":
    main()
