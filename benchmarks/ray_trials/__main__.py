"""Trials of Ray Tune on shared and on whole devices, written to docs/benchmarks/ray_trials.md.

Run ``python -m benchmarks.ray_trials`` on an otherwise idle machine; it takes about 35 minutes. It
measures a campaign on one core, trains a release on it, and runs the same trials on two nodes of
Ray in turn: on whole devices, and with the resources of `presage.ray.resources`. Results are stored
in ``--output`` and not computed again.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.markdown import write_page
from benchmarks.ray_trials.page import page
from benchmarks.ray_trials.tuning import ORDER
from presage.features.tables import schemas as tables

PAGE = Path("docs/benchmarks/ray_trials.md")


def main() -> None:
    """Measure, train, run the trials, and write the page."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.ray_trials",
        description=(__doc__ or "").split("\n", maxsplit=1)[0],
    )
    parser.add_argument("--output", type=Path, default=Path(".cache/ray_trials"))
    parser.add_argument("--note", default="", help="what else ran on the machine, for the page")
    args = parser.parse_args()
    output: Path = args.output
    output.mkdir(parents=True, exist_ok=True)
    runs = [output / f"run-{number}.json" for number in range(len(ORDER))]
    _ensure(output / "tables/executions.parquet", "device_release", output, "measure")
    _ensure(output / "release/release.json", "device_release", output, "train")
    _ensure(runs[-1], "tuning", output)
    release = _read(output / "release/release.json")["release_id"]
    campaign = {
        "solo": _rows(output, tables.EXECUTIONS, "executions", "job_id"),
        "colocated": _rows(output, tables.COLOCATIONS, "colocations", "colocation_id"),
    }
    lines = page(_read(output / "kinds.json"), [*map(_read, runs)], release, campaign, args.note)
    write_page(PAGE, lines)


def _ensure(path: Path, module: str, *arguments: object) -> None:
    """Run a module of this benchmark, unless its result exists."""
    if path.exists():
        return
    words = [sys.executable, "-m", f"benchmarks.ray_trials.{module}", *map(str, arguments)]
    subprocess.run(words, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})


def _read(path: Path) -> Any:
    return json.loads(path.read_text())


def _rows(output: Path, schema: Any, name: str, column: str) -> int:
    found = tables.read(schema, output / f"tables/{name}.parquet")
    return len(set(found.column(column).to_pylist()))


if __name__ == "__main__":
    main()
