"""What knowing the failure rates is worth: true rates against estimated ones."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

from benchmarks.placement.comparisons import SEEDS, WORLDS, reported
from benchmarks.placement.report import interval_of, shown, table
from presage.placement.core.batches import BatchSettings
from presage.placement.core.clusters import makespans_s
from presage.placement.core.rules import RULES, Rule, run_rule

BATCHES = 200  # of each seed
HISTORIES_H = {
    "true rates known": math.inf,
    "estimated from 10,000 h": 10_000.0,
    "estimated from 1,000 h": 1_000.0,
    "estimated from 100 h": 100.0,
    "estimated from 10 h": 10.0,
}


def section(rules: Mapping[str, Rule]) -> Iterator[str]:
    """Yield the section; ``rules`` are the tuned ones of each world."""
    yield "## What is it worth to know the failure rates?\n"
    yield (
        f"Mean makespans over that of `first-fit`, over {len(SEEDS)} seeds of {BATCHES} batches, "
        "with the same jobs and failures in each row. An oracle knows the true rate of each GPU; "
        "other rows estimate it from the failures of an earlier time. `expected` has the order and "
        "patience tuned above:\n"
    )
    header = [f"{world}: {name}" for world in WORLDS for name in ("least-failing", "expected")]
    rows = []
    for name, history_h in HISTORIES_H.items():
        cells = [
            shown(interval_of(ratios(replace(world, estimate_h=history_h), rule)))
            for key, world in WORLDS.items()
            for rule in (RULES["least-failing"], rules[key])
        ]
        rows.append([name, *cells])
    yield from table(["rates", *header], rows)


def ratios(world: BatchSettings, rule: Rule) -> Iterator[float]:
    """Yield the mean makespan of a rule over that of first-fit, for each seed."""
    for seed in SEEDS:
        drawn = reported(world, seed, BATCHES)
        first_s = makespans_s(run_rule(drawn, RULES["first-fit"])).mean()
        yield float(makespans_s(run_rule(drawn, rule)).mean() / first_s)
