"""Placement on failing GPUs, written to docs/benchmarks/placement.md.

Run ``python -m benchmarks.placement``; it needs the extras ``placement``, ``serve`` and ``train``,
and takes about half an hour of one core. Measured values are stored in ``--output`` and not
measured again.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path

from benchmarks.markdown import write_page
from benchmarks.placement import (
    avoidance,
    hazard_knowledge,
    one_release,
    promotions,
    when_it_matters,
)
from benchmarks.placement.comparisons import (
    BATCHES,
    SEEDS,
    TRAINED,
    WORLDS,
    Learnt,
    compared_rules,
    equality,
    gains_results,
    learnt_results,
    placing_ratios,
    published_ratios,
    rule_ratios,
    tuned,
    variations,
)
from benchmarks.placement.report import Store, interval_of, shown, table
from presage.placement.core.batches import STRESS
from presage.placement.core.rules import Rule
from presage.placement.learnt.training import TrainingSettings
from presage.placement.published.training import PublishedSettings

PAGE = Path("docs/benchmarks/placement.md")
PPO_ROUNDS, PUBLISHED_ROUNDS = 12, 60
INTRODUCTION = f"""\
# Placement on failing GPUs

This benchmark compares rules and learnt policies for placement on GPUs with different failure
rates. Written by `python -m benchmarks.placement`.

Batches of 24 jobs of 1, 2, 4 or 8 GPUs are submitted at once to 16 GPUs, one per node. The failure
rate of each GPU is lognormal with a mean of one failure in 100 h. Without checkpoints a failed job
restarts from 0. With checkpoints every 2 h it loses the work since the last one, and a restart
costs 15 minutes. All policies run on the same jobs and failures. Figures are ratios of mean
makespans over {len(SEEDS)} seeds of {BATCHES} batches, with 95 % intervals over seeds. Orders and
patience are tuned on other batches; learnt policies are trained and selected on further ones.
"""


def main() -> None:
    """Measure what is missing, and write the page."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.placement",
        description=(__doc__ or "").split("\n", maxsplit=1)[0],
    )
    parser.add_argument("--output", type=Path, default=Path(".cache/placement"))
    parser.add_argument(
        "--promotions", action="store_true", help="Also train five releases for the gate: 5 min."
    )
    args = parser.parse_args()
    store = Store(args.output)
    write_page(PAGE, page(store, has_promotions=args.promotions))


def page(store: Store, *, has_promotions: bool) -> Iterator[str]:
    """Yield the lines of the page."""
    best = {name: _tuned(store, name, sets_interval=False) for name in WORLDS}
    intervals = {name: _tuned(store, name, sets_interval=True) for name in WORLDS}
    learners = {
        "no checkpoints": best["no checkpoints"], "checkpoints": intervals["checkpoints"],
    }  # fmt: skip
    yield INTRODUCTION
    yield from store.lines("core", core_section)
    yield from store.lines("rules", lambda: rule_section(best, intervals))
    yield from store.lines("avoidance", avoidance.section)
    yield from store.lines("hazards", lambda: hazard_knowledge.section(best))
    yield from store.lines("learnt", lambda: learnt_section(learners))
    if has_promotions:
        yield from promotions.section(store)
    yield from one_release.section(store)
    yield from store.lines("published", published_section)
    yield from when_it_matters.section(store)
    yield from store.lines("variations", lambda: variation_section(best["no checkpoints"]))


def _tuned(store: Store, world: str, *, sets_interval: bool) -> Rule:
    """Return the best rule of a world."""
    name = f"tuned_{world.replace(' ', '_')}{'_interval' if sets_interval else ''}"
    fields = store.value(name, lambda: tuned(WORLDS[world], sets_interval=sets_interval)._asdict())
    return Rule(**fields)


def core_section() -> Iterator[str]:
    """Yield the comparison of the core with the simulator."""
    batches, worst, factor = equality()
    yield "## Does the core agree with the simulator?\n"
    yield (
        f"On {batches:,} batches the largest relative difference between a job's end and that in "
        f"the simulator is {worst:.1e}. The compiled core is {factor:.0f} times faster.\n"
    )


def rule_section(best: Mapping[str, Rule], intervals: Mapping[str, Rule]) -> Iterator[str]:
    """Yield the comparison of rules, given the tuned ones without and with the best interval."""
    yield "## Which rule is best?\n"
    to_first, to_least = {}, {}
    for name, world in WORLDS.items():
        rules = compared_rules(best[name], intervals[name])
        to_first[name] = rule_ratios(world, rules, "first-fit, best-fit")
        to_least[name] = rule_ratios(world, rules, "least-failing")
    header = [f"{name}: over {base}" for name in WORLDS for base in ("first-fit", "least-failing")]
    rows = (
        [rule, *(shown(of[name][rule]) for name in WORLDS for of in (to_first, to_least))]
        for rule in to_first["checkpoints"]
    )
    yield from table(["rule", *header], rows)
    for name in WORLDS:
        yield (
            f"Tuned, {name}: a = {best[name].exponent:g}, patience {best[name].patience:g}; with "
            f"the best interval a = {intervals[name].exponent:g}, patience "
            f"{intervals[name].patience:g}."
        )
    yield "\nOn nodes with one GPU, best-fit is the same as first-fit.\n"


def learnt_section(rules: Mapping[str, Rule]) -> Iterator[str]:
    """Yield the results of the learnt policies."""
    yield "## Are learnt policies better?\n"
    yield (
        "Learnt choice of GPUs, with jobs in order of arrival, over `least-failing`, for each "
        "training:\n"
    )
    rows = [
        [name, *(f"{one:.4f}" for one in placing_ratios(world))] for name, world in WORLDS.items()
    ]
    yield from table(["", *(f"seed {seed}" for seed in TRAINED)], rows)
    yield (
        f"Learnt order, placement and waiting, by {PPO_ROUNDS} rounds of PPO that start from the "
        "best tuned rule. The scorer that is best on validation batches is kept, or the rule "
        "itself:\n"
    )
    settings = TrainingSettings(rounds=PPO_ROUNDS)
    yield from table(
        ["", "over least-failing", "over the tuned rule", "each seed", "CPU seconds per seed"],
        (
            learnt_row(name, learnt_results(world, rules[name], settings))
            for name, world in WORLDS.items()
        ),
    )
    yield (
        "A ratio of exactly 1 means that no change of the rule was better on validation batches, "
        "so the scorer decides as the rule does.\n"
    )
    yield (
        "A scorer fitted to the gains of single actions, by rollouts on the same failures, over "
        "the tuned rule:\n"
    )
    fitted = {name: gains_results(world, rules[name]) for name, world in WORLDS.items()}
    yield from table(
        ["", "each seed"],
        ([name, ", ".join(f"{one:.4f}" for one in found)] for name, found in fitted.items()),
    )


def learnt_row(name: str, found: list[Learnt]) -> list[str]:
    """Return the table row of the trainings in one world."""
    return [
        name,
        shown(interval_of(one.to_least for one in found)),
        shown(interval_of(one.to_rule for one in found)),
        ", ".join(f"{one.to_rule:.4f}" for one in found),
        f"{max(one.cpu_s for one in found):.0f}",
    ]


def published_section() -> Iterator[str]:
    """Yield the results of the published policy."""
    yield "## How good is the published policy?\n"
    yield (
        f"Networks, replay and reward as published, {PUBLISHED_ROUNDS} rounds, over "
        "`least-failing` without checkpoints. The state has no failure history, and identifies "
        "GPUs by number only.\n"
    )
    rows = []
    for update in ("importance", "clip"):
        settings = PublishedSettings(rounds=PUBLISHED_ROUNDS, update=update)
        for name, values in published_ratios(STRESS, settings).items():
            rows.append([update, name, ", ".join(f"{one:.2f}" for one in values)])
    yield from table(["update", "cluster", "each seed"], rows)


def variation_section(rule: Rule) -> Iterator[str]:
    """Yield results in other settings."""
    yield "## What changes in other settings?\n"
    yield "Over `first-fit`, without checkpoints, with the rule tuned above:\n"
    rows = ([name, *(f"{one:.3f}" for one in values)] for name, values in variations(rule).items())
    yield from table(["setting", "least-failing", "expected", "JCT of expected"], rows)
    yield (
        "JCT is the mean job completion time over that of first-fit. Starting large jobs first "
        "shortens the makespan of a batch, and delays its small jobs.\n"
    )


if __name__ == "__main__":
    main()
