"""Agents killed by a drawn schedule, live and simulated; writes docs/benchmarks/failures_live.md.

Run ``python -m benchmarks.failures_live``; it takes about 15 minutes on two cores. For each seed,
jobs and failures of nodes are drawn. A live cluster for each policy runs them, all at the same
time, and the simulator runs the same. Outcomes of live runs are stored in ``--output`` and not
measured again.
"""

from __future__ import annotations

import argparse
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.failures_live.learnt_release import train_release
from benchmarks.failures_live.live import run_live
from benchmarks.failures_live.notes import NOTES
from benchmarks.failures_live.outcome import (
    Outcome,
    live_outcome,
    overhead_s,
    rejoin_s,
    submit_times_s,
)
from benchmarks.failures_live.page import PolicyRun, SeedRun, page
from benchmarks.failures_live.picture import draw
from benchmarks.failures_live.policies import POLICIES, RELEASE
from benchmarks.failures_live.simulated import run_simulated
from benchmarks.failures_live.trace import SEEDS, Plan, draw_plan, write_tables
from benchmarks.markdown import write_page

PAGE = Path("docs/benchmarks/failures_live.md")
PICTURE = Path("docs/pictures/failures_live.png")
FIRST_PORT = 50181
SIMULATED_SEEDS = range(1001, 1101)
OVERHEAD_S, REJOIN_S = 1.0, 3.0


def main() -> None:
    """Run what is missing, simulate, and write the page and its picture."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.failures_live",
        description=(__doc__ or "").split("\n", maxsplit=1)[0],
    )
    parser.add_argument("--output", type=Path, default=Path(".cache/failures_live"))
    parser.add_argument("--seed", type=int, action="append", help="run this one only; repeatable")
    args = parser.parse_args()
    output = args.output.resolve()
    output.mkdir(parents=True, exist_ok=True)
    write_tables(output / "tables")
    train_release(RELEASE)
    runs = []
    for seed in args.seed or SEEDS:
        plan = draw_plan(seed)
        runs.append(compared(seed, plan, _live_runs(seed, plan, output), output / "tables"))
    lines = page(runs, _simulated_gains(output / "tables"), NOTES)
    text = "\n".join(lines) + "\n"
    print(text)
    if not args.seed:
        write_page(PAGE, text)
        draw(runs, PICTURE)


def compared(seed: int, plan: Plan, live: dict[str, Any], tables: Path) -> SeedRun:
    """Simulate the live runs of a seed, with the delays that were measured in them."""
    extra_s, joining_s = overhead_s(live.values(), plan.jobs), rejoin_s(live.values())
    found = {}
    for name, policy in POLICIES.items():
        delays: dict[str, Any] = {
            "submit_s": submit_times_s(live[name]), "overhead_s": extra_s, "rejoin_s": joining_s,
        }  # fmt: skip
        found[name] = PolicyRun(
            live_outcome(live[name]),
            run_simulated(plan, policy, tables, **delays),
            run_simulated(plan, policy, tables, **delays, detection=None),
        )
    return SeedRun(seed, plan, live, found, extra_s, joining_s)


def _simulated_gains(tables: Path) -> dict[str, list[Outcome]]:
    """Return the simulated outcomes of further seeds, with delays as on an idle machine."""
    plans = [draw_plan(seed) for seed in SIMULATED_SEEDS]
    return {
        name: [
            run_simulated(plan, policy, tables, overhead_s=OVERHEAD_S, rejoin_s=REJOIN_S)
            for plan in plans
        ]
        for name, policy in POLICIES.items()
    }


def _live_runs(seed: int, plan: Plan, output: Path) -> dict[str, Any]:
    """Return the stored live run of each policy; run those that are missing at the same time."""

    def run(name: str) -> dict[str, Any]:
        stored = output / f"live-{seed}-{name}.json"
        if not stored.is_file():
            live = run_live(
                plan, POLICIES[name], output / "tables", output / f"state-{seed}-{name}",
                port=FIRST_PORT + list(POLICIES).index(name),
            )  # fmt: skip
            stored.write_text(json.dumps(live, indent=1))
        found: dict[str, Any] = json.loads(stored.read_text())
        return found

    with ThreadPoolExecutor(len(POLICIES)) as pool:
        return dict(zip(POLICIES, pool.map(run, POLICIES), strict=True))


if __name__ == "__main__":
    main()
