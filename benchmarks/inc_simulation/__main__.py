"""Rules that share a switch, simulated and written to docs/benchmarks/inc_simulation.md.

Run ``python -m benchmarks.inc_simulation``: about 10 minutes on two cores. Results are stored in
``--output`` and not computed again.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.inc_simulation import experiments
from benchmarks.inc_simulation.page import Results, page
from benchmarks.markdown import write_page

PAGE = Path("docs/benchmarks/inc_simulation.md")
Task = tuple[Any, ...]  # name of an experiment, and its arguments


def main() -> None:
    """Compute what is missing, and write the page."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.inc_simulation",
        description=(__doc__ or "").split("\n", maxsplit=1)[0],
    )
    parser.add_argument("--output", type=Path, default=Path(".cache/inc_simulation"))
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    found = _results([*_reporting(), *_tuning()], args.output / "results.json")
    write_page(PAGE, page(found))


def _tuning() -> Iterable[Task]:
    for jitter in experiments.JITTERS:
        for seed in experiments.TUNING:
            yield "tune_first_come", seed, jitter
            for name in experiments.OPTIONS:
                yield "tune", seed, jitter, name


def _reporting() -> Iterable[Task]:
    for jitter in experiments.JITTERS:
        for seed in experiments.REPORTED:
            yield "report", seed, jitter
    for rule in ("first-come", "time-saved"):
        for jitter in experiments.JITTERS:
            for seed in range(2000, 2008):
                for how in experiments.STARTS:
                    yield "start", seed, how, rule, jitter
        for seed in experiments.PLACED:
            for how in experiments.PLACEMENTS[: None if rule == "first-come" else -1]:
                yield "place", seed, how, rule


def _results(tasks: Iterable[Task], path: Path) -> Results:
    """Return the result of each task; those in the file are not computed again."""
    stored = json.loads(path.read_text()) if path.is_file() else []
    found: Results = {tuple(task): result for task, result in stored}
    missing = [task for task in tasks if task not in found]
    with multiprocessing.Pool() as pool:
        for done, (task, result) in enumerate(pool.imap_unordered(_compute, missing), 1):
            found[task] = result
            if done % 10 == 0 or done == len(missing):
                path.write_text(json.dumps(list(found.items())))
                print(f"{path.stem}: {done} of {len(missing)}", flush=True)
    return found


def _compute(task: Task) -> tuple[Task, Any]:
    name, *arguments = task
    return task, getattr(experiments, name)(*arguments)


if __name__ == "__main__":
    main()
