"""Placement on failing GPUs, written to docs/benchmarks/placement.md.

Run ``python -m benchmarks.placement``; it needs the extras ``placement`` and ``train``, and takes
about ten minutes of one core.
"""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path

from benchmarks.placement.comparisons import (
    BATCHES,
    SEEDS,
    TRAINED,
    WORLDS,
    Learnt,
    Ratio,
    by_mtbf,
    compared_rules,
    equality,
    gains_results,
    interval_of,
    learnt_results,
    placing_ratios,
    published_ratios,
    rule_ratios,
    sizes,
    tuned,
    variations,
)
from presage.placement.core.batches import STRESS
from presage.placement.learnt.training import TrainingSettings
from presage.placement.published.training import PublishedSettings

PAGE = Path("docs/benchmarks/placement.md")
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
    """Measure and write the page."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.placement",
        description=(__doc__ or "").split("\n", maxsplit=1)[0],
    )
    parser.add_argument("--rounds", type=int, default=12, help="Rounds of PPO.")
    parser.add_argument("--published-rounds", type=int, default=60)
    args = parser.parse_args()
    lines = "\n".join(page(args.rounds, args.published_rounds)).split("\n")
    PAGE.write_text("\n".join(map(wrapped, lines)) + "\n")


def wrapped(line: str) -> str:
    """Return a line of text in at most 100 columns; tables stay as they are."""
    return line if line.startswith("|") else textwrap.fill(line, 100)


def page(rounds: int, published_rounds: int) -> Iterator[str]:
    """Yield the lines of the page."""
    yield INTRODUCTION
    yield from core_section()
    best = {name: tuned(world, sets_interval=False) for name, world in WORLDS.items()}
    intervals = {name: tuned(world, sets_interval=True) for name, world in WORLDS.items()}
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
    print("rules done", flush=True)
    yield from learnt_section(rounds, {"no checkpoints": best["no checkpoints"],
                                       "checkpoints": intervals["checkpoints"]})  # fmt: skip
    yield from published_section(published_rounds)
    yield from world_section(best["no checkpoints"])


def core_section() -> Iterator[str]:
    """Yield the comparison of the core with the simulator."""
    batches, worst, factor = equality()
    print("core done", flush=True)
    yield "## Does the core agree with the simulator?\n"
    yield (
        f"On {batches:,} batches the largest relative difference between a job's end and that in "
        f"the simulator is {worst:.1e}. The compiled core is {factor:.0f} times faster.\n"
    )


def learnt_section(rounds: int, rules: dict) -> Iterator[str]:  # type: ignore[type-arg]
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
    print("placing done", flush=True)
    yield (
        f"Learnt order, placement and waiting, by {rounds} rounds of PPO that start from the best "
        "tuned rule. The scorer that is best on validation batches is kept, or the rule itself:\n"
    )
    results = {
        name: learnt_results(world, rules[name], TrainingSettings(rounds=rounds))
        for name, world in WORLDS.items()
    }
    yield from table(
        ["", "over least-failing", "over the tuned rule", "each seed", "CPU seconds per seed"],
        (learnt_row(name, found) for name, found in results.items()),
    )
    yield (
        "A ratio of exactly 1 means that no change of the rule was better on validation batches, "
        "so the scorer decides as the rule does.\n"
    )
    print("ppo done", flush=True)
    yield from gains_section(rules)
    print("learnt done", flush=True)
    scorer = max(results["no checkpoints"], key=lambda one: abs(one.to_rule - 1)).scorer
    yield "One scorer that was trained on 16 GPUs, on clusters of other sizes:\n"
    by_size = sizes(scorer, rules["no checkpoints"])
    yield from table(
        ["GPUs", "over the tuned rule", "ms per decision, with the simulation"],
        ([f"{n}", f"{ratio:.4f}", f"{ms:.2f}"] for n, (ratio, ms) in by_size.items()),
    )


def gains_section(rules: dict) -> Iterator[str]:  # type: ignore[type-arg]
    """Yield the results of scorers fitted to the gains of single actions."""
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
        shown(interval_of([one.to_least for one in found])),
        shown(interval_of([one.to_rule for one in found])),
        ", ".join(f"{one.to_rule:.4f}" for one in found),
        f"{max(one.cpu_s for one in found):.0f}",
    ]


def published_section(rounds: int) -> Iterator[str]:
    """Yield the results of the published policy."""
    yield "## How good is the published policy?\n"
    yield (
        f"Networks, replay and reward as published, {rounds} rounds, over `least-failing` without "
        "checkpoints. The state has no failure history, and identifies GPUs by number only.\n"
    )
    rows = []
    for update in ("importance", "clip"):
        settings = PublishedSettings(rounds=rounds, update=update)
        for name, values in published_ratios(STRESS, settings).items():
            rows.append([update, name, ", ".join(f"{one:.2f}" for one in values)])
    yield from table(["update", "cluster", "each seed"], rows)
    print("published done", flush=True)


def world_section(rule) -> Iterator[str]:  # type: ignore[no-untyped-def] # noqa: ANN001
    """Yield results in other worlds."""
    yield "## When does placement matter?\n"
    yield "`least-failing` over `first-fit` by mean time between failures of a GPU:\n"
    rows = (
        [f"{gpus}", f"{mtbf_h:,}", f"{without:.4f}", f"{with_:.4f}"]
        for (gpus, mtbf_h), (without, with_) in by_mtbf().items()
    )
    yield from table(["GPUs", "MTBF (h)", "no checkpoints", "checkpoints"], rows)
    yield "Over `first-fit` in other settings, without checkpoints, with the rule tuned above:\n"
    rows = ([name, *(f"{one:.3f}" for one in values)] for name, values in variations(rule).items())
    yield from table(["setting", "least-failing", "expected", "JCT of expected"], rows)
    yield (
        "JCT is the mean job completion time over that of first-fit. Starting large jobs first "
        "shortens the makespan of a batch, and delays its small jobs."
    )


def shown(ratio: Ratio) -> str:
    """Return a ratio with its margin."""
    return f"{ratio.mean:.3f} ± {ratio.margin:.3f}"


def table(header: list[str], rows: Iterable[list[str]]) -> Iterator[str]:
    """Yield a table and an empty line."""
    yield "| " + " | ".join(header) + " |"
    yield "|" + "---|" * len(header)
    for row in rows:
        yield "| " + " | ".join(row) + " |"
    yield ""


if __name__ == "__main__":
    main()
