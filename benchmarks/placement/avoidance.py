"""Leaving GPUs with high failure rates idle, with a limit, at a mean of one failure in 1,000 h."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from benchmarks.placement.comparisons import SEEDS, reported
from benchmarks.placement.report import Ratio, interval_of, shown, table
from presage.placement.core.batches import CHECKPOINTS, STRESS
from presage.placement.core.clusters import makespans_s
from presage.placement.core.rules import RULES, run_rule

LEAST = RULES["least-failing"]
WORST = LEAST._replace(avoided=1 / 16)
VARIANTS = {
    "first-fit": RULES["first-fit"],
    "worst GPU of 16 avoided": WORST._replace(avoided_above=1.0),
    "worst GPU of 16, if above 4 times the median": WORST,
    "worst GPU of 16, if above 30 times the median": WORST._replace(avoided_above=30.0),
    "up to 20 %, if above 4 times the median": LEAST._replace(avoided=0.2),
    "up to 20 %, if above 30 times the median": LEAST._replace(avoided=0.2, avoided_above=30.0),
    "waits if expected to end earlier": LEAST._replace(patience=1.0),
    "waits if expected to end in 0.8 of the time": LEAST._replace(patience=0.8),
    "waits if expected to end in 0.5 of the time": LEAST._replace(patience=0.5),
}
BATCHES = 200  # of each seed
RARE = replace(STRESS, mtbf_h=1000.0)
SETTINGS = {
    "no checkpoints": RARE,
    "jobs 6 times as long": replace(RARE, runtime_h=48.0),
    "rates spread more": replace(RARE, rate_spread=2.5),
    "half as many jobs": replace(RARE, jobs=12),
    "jobs of 1 or 2 GPUs, long": replace(RARE, job_gpus=(1, 2), runtime_h=48.0),
    "checkpoints": replace(CHECKPOINTS, mtbf_h=1000.0),
}


def section() -> Iterator[str]:
    """Yield the section."""
    found = {name: measured(name) for name in SETTINGS}
    yield "## Does it pay to leave the worst GPU idle?\n"
    yield (
        "16 GPUs with a mean of one failure in 1,000 h. Makespans over `least-failing`, which uses "
        f"every GPU, over {len(SEEDS)} seeds of {BATCHES} batches. Jobs start in "
        "order of arrival. A rule that waits does so for GPUs that running jobs will release:\n"
    )
    yield from table(
        ["rule", *SETTINGS],
        ([rule, *(shown(found[name][rule]) for name in SETTINGS)] for rule in VARIANTS),
    )
    yield (
        "Long jobs have a median of 48 h in place of 8 h. With the larger spread the standard "
        "deviation of the logarithm of a rate is 2.5 in place of 1.3.\n"
    )
    yield conclusion(found) + "\n"


def measured(setting: str) -> dict[str, Ratio]:
    """Return the makespan of each variant over that of least-failing in one setting."""
    values: dict[str, list[float]] = {rule: [] for rule in VARIANTS}
    for seed in SEEDS:
        drawn = reported(SETTINGS[setting], 700 + seed, BATCHES)
        base_s = makespans_s(run_rule(drawn, LEAST)).mean()
        for name, rule in VARIANTS.items():
            values[name].append(float(makespans_s(run_rule(drawn, rule)).mean() / base_s))
    return {name: interval_of(ratios) for name, ratios in values.items()}


def conclusion(found: dict[str, dict[str, Ratio]]) -> str:
    """Return which variants are better than least-failing, with the whole interval."""
    gains = [
        f"{rule} ({setting}: {100 * (1 - one.mean):.1f} %)"
        for setting, ratios in found.items()
        for rule, one in ratios.items()
        if one.mean + one.margin < 1
    ]
    if not gains:
        return "No variant is better than `least-failing` with its whole interval."
    return "Better than `least-failing` with the whole interval: " + "; ".join(gains) + "."
