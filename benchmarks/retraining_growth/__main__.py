"""Cost of retraining by the number of reported outcomes, written to docs/benchmarks.

Run ``python -m benchmarks.retraining_growth LUCID GAVEL``; the folders are the campaigns that
``presage import lucid`` and ``presage import gavel`` write. Costs are stored in ``--output`` and
not measured again, unless their file is deleted. All sizes take about two hours of one core, and
6 GiB of disk.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from benchmarks.markdown import write_page
from benchmarks.retraining_growth.outcomes import draw_outcomes, write_logs
from benchmarks.retraining_growth.page import page
from benchmarks.retraining_growth.picture import draw
from benchmarks.retraining_growth.site import make_site
from benchmarks.retraining_growth.stages import Cost, commands, make_workspace, run_stage
from presage.models.release.release import load_release

PAGE = Path("docs/benchmarks/retraining_growth.md")
PICTURE = Path("docs/pictures/retraining_growth.png")
SIZES = (10_000, 100_000, 1_000_000)
JOBS, DEVICES = 10_000, 50
COMMITTED = ("cpu-2", "cpu-2-llm", "cpu-2-zoo", "h200")
PROFILES, PRETRAINED = Path("data/profiles"), Path("data/pretrained/release")
COSTS, LOGS = "costs.jsonl", "data/outcomes"


def main() -> None:
    """Measure what is missing, and write the page."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.retraining_growth",
        description=(__doc__ or "").split("\n", maxsplit=1)[0],
    )
    parser.add_argument("campaigns", type=Path, nargs="*", help="further measured campaigns")
    parser.add_argument("--output", type=Path, default=Path(".cache/retraining_growth"))
    parser.add_argument("--sizes", type=int, nargs="*", default=SIZES, help="to measure")
    parser.add_argument("--stages", nargs="*", help="stages to measure, such as ingest")
    args = parser.parse_args()
    for size in args.sizes:
        _measure(size, args.campaigns, args.output / str(size), args.stages)
    found = {
        size: costs for size in SIZES if (costs := read_costs(args.output / str(size) / COSTS))
    }
    draw(found, PICTURE)
    write_page(PAGE, page(found, {size: args.output / str(size) for size in found}))


def _measure(size: int, campaigns: list[Path], folder: Path, stages: list[str] | None) -> None:
    """Run the stages that have no cost yet, in the folder of a size."""
    make_workspace(folder, PROFILES / "h200")
    if not (folder / LOGS).exists():
        measured = [*(PROFILES / name for name in COMMITTED), *campaigns]
        site = make_site(measured, jobs=JOBS, devices=DEVICES, seed=0)
        release_id = load_release(PRETRAINED).release_id
        drawn = draw_outcomes(site, size, seed=0)
        write_logs(site, drawn, folder / LOGS, release_id=release_id)
    known = {cost.stage for cost in read_costs(folder / COSTS)}
    for stage, command in commands():
        if stage in known or (stages is not None and stage.split()[0] not in stages):
            continue
        cost = run_stage(stage, command, folder)
        print(size, cost, flush=True)
        with (folder / COSTS).open("a") as file:
            file.write(json.dumps(asdict(cost)) + "\n")


def read_costs(path: Path) -> list[Cost]:
    """Return the measured costs of a size; none without a file."""
    return (
        [Cost(**json.loads(line)) for line in path.read_text().splitlines()]
        if path.is_file()
        else []
    )


if __name__ == "__main__":
    main()
