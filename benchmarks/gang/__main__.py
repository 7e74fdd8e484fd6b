"""Value of gang scheduling by interference and communication, for docs/benchmarks/gang.md.

Run ``python -m benchmarks.gang GAVEL LUCID`` with the folders that ``presage import`` wrote for
Gavel's and Lucid's measurements; our own are in data/profiles. Traces are those of PRESAGE_DATASETS
(``../shared/datasets``). Outcomes are stored in ``--output`` and not computed again. Timed outcomes
are computed first, by a single process.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.gang.decision import CASES, decided
from benchmarks.gang.page import PICTURE, draw, page
from benchmarks.gang.plans import LARGE, SMALL, large, small
from benchmarks.gang.runs import STREAMS, runs, simulate_on, streamed
from benchmarks.markdown import write_page

PAGE = Path("docs/benchmarks/gang.md")
OWN = Path("data/profiles/cpu-2")


def main() -> None:
    """Make what is missing, and write the page."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gang", description=(__doc__ or "").split("\n", maxsplit=1)[0]
    )
    parser.add_argument("gavel", type=Path)
    parser.add_argument("lucid", type=Path)
    parser.add_argument("--output", type=Path, default=Path(".cache/gang"))
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    worlds = {"gavel": args.gavel, "lucid": args.lucid, "own": OWN}
    made = dict(making(CASES, partial(decided, lucid=args.lucid), args.output, 1))
    made |= dict(making(SMALL, small, args.output, 1))
    made |= dict(making(LARGE, large, args.output, 1))
    made |= dict(making(STREAMS, streamed, args.output, args.workers))
    made |= dict(making(runs(), partial(simulate_on, worlds), args.output, args.workers))
    draw(made, PICTURE)
    write_page(PAGE, page(made))


def making(
    tasks: Sequence[Any], make: Callable[[Any], dict[str, Any]], output: Path, workers: int
) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Return the result of each task, a frozen dataclass with all that it depends on."""
    paths = {task: output / f"{_name(task)}.json" for task in tasks}
    missing = [task for task in tasks if not paths[task].is_file()]
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        for i, (task, outcome) in enumerate(zip(missing, pool.map(make, missing), strict=True), 1):
            paths[task].write_text(json.dumps(outcome))
            print(f"{i}/{len(missing)} {task}", flush=True)
    for task in tasks:
        yield task, json.loads(paths[task].read_text())


def _name(task: Any) -> str:
    values = "_".join(str(value) for value in asdict(task).values())
    return f"{type(task).__name__}_{values}".replace("/", "-").replace(" ", "-")


if __name__ == "__main__":
    main()
