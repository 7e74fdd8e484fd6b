"""Elastic jobs live and simulated, written to docs/benchmarks/elastic_live.md.

Run ``python -m benchmarks.elastic_live POLLUX``; it takes about 7 minutes for each seed. POLLUX is
the folder that ``presage import pollux`` wrote. For each seed, the jobs of a trace run on a live
cluster of two nodes with two devices each, and in the simulator, under the same policy with the
same forecasts. Outcomes of live runs are stored in ``--output`` and not measured again.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from benchmarks.elastic_live.live import run_live
from benchmarks.elastic_live.notes import NOTES
from benchmarks.elastic_live.page import SeedRun, page
from benchmarks.elastic_live.simulated import run_simulated
from benchmarks.elastic_live.trace import SEEDS, Curves, submissions
from benchmarks.markdown import write_page

PAGE = Path("docs/benchmarks/elastic_live.md")


def main() -> None:
    """Run what is missing, simulate, and write the page."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.elastic_live",
        description=(__doc__ or "").split("\n", maxsplit=1)[0],
    )
    parser.add_argument("pollux", type=Path)
    parser.add_argument("--output", type=Path, default=Path(".cache/elastic_live"))
    parser.add_argument("--seed", type=int, action="append", help="run this one only; repeatable")
    args = parser.parse_args()
    output = args.output.resolve()
    output.mkdir(parents=True, exist_ok=True)
    curves = Curves(args.pollux)
    runs = []
    for seed in args.seed or SEEDS:
        jobs, stored = submissions(curves, seed), output / f"live-{seed}.json"
        if not stored.is_file():
            live = run_live(jobs, curves, args.pollux, output / f"state-{seed}")
            stored.write_text(json.dumps(live, indent=1))
        live = json.loads(stored.read_text())
        simulated = run_simulated(jobs, curves, live)
        immediate = run_simulated(jobs, curves, live, is_growth_immediate=True)
        steps_s = {one.job_id: curves.steps_s(one) for one in jobs}
        runs.append(SeedRun(seed, jobs, steps_s, live, simulated, immediate))
    lines = list(page(runs, NOTES))
    print("\n".join(lines))
    if not args.seed:
        write_page(PAGE, lines)


if __name__ == "__main__":
    main()
