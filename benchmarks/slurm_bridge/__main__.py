"""Response times and memory overruns of the Slurm bridge: docs/benchmarks/slurm_bridge.md.

Run ``python -m benchmarks.slurm_bridge LUCID RELEASES``; the folders are those of
``benchmarks.forecast_worth``. Response times in ``--output`` are not measured again. It takes two
minutes.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from benchmarks.slurm_bridge.memory_overruns import count_overruns
from benchmarks.slurm_bridge.page import page
from benchmarks.slurm_bridge.response_times import ResponseTimes, measure_response_times

PAGE = Path("docs/benchmarks/slurm_bridge.md")


def main() -> None:
    """Measure, and write the page."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.slurm_bridge",
        description=(__doc__ or "").split("\n", maxsplit=1)[0],
    )
    parser.add_argument("lucid", type=Path)
    parser.add_argument("releases", type=Path)
    parser.add_argument("--output", type=Path, default=Path(".cache/slurm_bridge.json"))
    args = parser.parse_args()
    if not args.output.is_file():
        args.output.parent.mkdir(parents=True, exist_ok=True)
        args.output.write_text(json.dumps([asdict(one) for one in measure_response_times()]))
    times = [ResponseTimes(**row) for row in json.loads(args.output.read_text())]
    overruns = list(count_overruns(args.lucid, args.releases))
    PAGE.write_text("\n".join(page(times, overruns)) + "\n")


if __name__ == "__main__":
    main()
