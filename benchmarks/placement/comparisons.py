"""Paired comparisons of placement rules and policies on the same failures."""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import product
from statistics import mean
from typing import NamedTuple

from benchmarks.placement.report import Ratio, interval_of
from presage.placement.core.batches import CHECKPOINTS, STRESS, Batches, BatchSettings, draw_batches
from presage.placement.core.clusters import average_jcts_s, makespans_s
from presage.placement.core.real_batch import known_hazards, real_simulation
from presage.placement.core.rules import LARGEST, LEAST_FAILING, MATCHED, RULES, Rule, run_rule
from presage.placement.learnt.improvement import improve_rule
from presage.placement.learnt.placing import roll_out_gpus, train_placing
from presage.placement.learnt.rollout import roll_out
from presage.placement.learnt.training import TrainingSettings, greedy, train
from presage.placement.published.training import (
    PublishedSettings,
    makespans_published_s,
    train_published,
)
from presage.schedulers.policies.failures.expected import Expected
from presage.schedulers.policies.failures.least_failing import LeastFailing

WORLDS = {"no checkpoints": STRESS, "checkpoints": CHECKPOINTS}
SEEDS = tuple(range(10))  # of the reported batches
TRAINED = tuple(range(1, 6))  # seeds of trainings
BATCHES = 500  # of each seed
TUNING_SEED, REPORT_SEED = 5_151, 1_000_000  # nothing is chosen on reported batches


def reported(world: BatchSettings, seed: int, batches: int = BATCHES) -> Batches:
    """Return the batches of a seed on which figures are reported."""
    return draw_batches(world, batches, seed=REPORT_SEED + seed)


def equality(batches: int = 250) -> tuple[int, float, float]:
    """Return the number of batches, the largest relative difference to the simulator, and how many
    times faster the core is (processor time).
    """
    rules = (
        (RULES["least-failing"], lambda hazards: LeastFailing(hazards=hazards)),
        (
            Rule(order=LARGEST, exponent=0.5, choice=LEAST_FAILING),
            lambda hazards: Expected(patience=0.0, hazards=hazards),
        ),
    )
    worst, core_s, real_s = 0.0, 0.0, 0.0
    for world, (rule, policy) in product(WORLDS.values(), rules):
        drawn = reported(world, 99, batches)
        run_rule(drawn, rule)
        began_s = time.process_time()
        ends_s = run_rule(drawn, rule).jobs["done_s"]
        core_s += time.process_time() - began_s
        for b in range(batches):
            simulation = real_simulation(drawn, b, policy(known_hazards(drawn, b)))
            began_s = time.process_time()
            simulation.run()
            real_s += time.process_time() - began_s
            for one in simulation.results:
                end_s = ends_s[b, int(one.job.job_id)]
                worst = max(worst, abs(one.end_s / end_s - 1))
    return batches * 4, worst, real_s / core_s


def tuned(world: BatchSettings, *, sets_interval: bool) -> Rule:
    """Return the best order t * n**a and patience, on batches of their own."""
    drawn = draw_batches(world, 1500, seed=TUNING_SEED)
    return min(
        (
            Rule(
                order=LARGEST, exponent=a, choice=LEAST_FAILING, patience=patience,
                is_interval_chosen=sets_interval,
            )
            for a in (0.25, 0.5, 0.75, 1.0, 1.5)
            for patience in (0.0, 0.3, 0.5, 0.7, 0.8, 0.9, 1.0)
        ),
        key=lambda rule: makespans_s(run_rule(drawn, rule)).mean(),
    )  # fmt: skip


def compared_rules(best: Rule, best_interval: Rule) -> dict[str, Rule]:
    """Return the compared rules by name."""
    least = RULES["least-failing"]
    return {
        "random": RULES["random"],
        "first-fit, best-fit": RULES["first-fit"],
        "least-failing": least,
        "matched": Rule(choice=MATCHED),
        "least-failing, worst GPU of 16 avoided": least._replace(avoided=1 / 16, avoided_above=1.0),
        "least-failing, up to 20 % avoided": least._replace(avoided=0.2),
        "least-failing, best interval": least._replace(is_interval_chosen=True),
        "tuned order": best._replace(patience=0.0),
        "expected: tuned order and waiting": best,
        "expected, best interval": best_interval,
    }


def rule_ratios(world: BatchSettings, rules: dict[str, Rule], base: str) -> dict[str, Ratio]:
    """Return the mean makespan of each rule over that of ``base``."""
    found: dict[str, list[float]] = {name: [] for name in rules}
    for seed in SEEDS:
        drawn = reported(world, seed)
        base_s = makespans_s(run_rule(drawn, rules[base])).mean()
        for name, rule in rules.items():
            found[name].append(makespans_s(run_rule(drawn, rule, seed=seed)).mean() / base_s)
    return {name: interval_of(values) for name, values in found.items()}


def placing_ratios(world: BatchSettings) -> list[float]:
    """Return the learnt choice of GPUs over ``least-failing``, for each training."""
    found = []
    for seed in TRAINED:
        scorer = train_placing(world, seed=seed)
        drawn = reported(world, 100 + seed)
        learnt_s = makespans_s(roll_out_gpus(drawn, scorer, samples=False)[0]).mean()
        found.append(learnt_s / makespans_s(run_rule(drawn, RULES["least-failing"])).mean())
    return found


class Learnt(NamedTuple):
    """Result of one training of order and waiting: ratios of mean makespans, processor seconds."""

    to_least: float
    to_rule: float
    cpu_s: float


def learnt_results(world: BatchSettings, rule: Rule, settings: TrainingSettings) -> list[Learnt]:
    """Train once for each seed, and compare on clusters that no training saw."""
    found = []
    for seed in TRAINED:
        began_s = time.process_time()
        scorer = train((world,), rule, settings, seed=seed)
        cpu_s = time.process_time() - began_s
        drawn = reported(world, 200 + seed)
        learnt_s = makespans_s(roll_out(drawn, rule, greedy(scorer))[0]).mean()
        least_s, rule_s = (
            makespans_s(run_rule(drawn, one)).mean() for one in (RULES["least-failing"], rule)
        )
        found.append(Learnt(learnt_s / least_s, learnt_s / rule_s, cpu_s))
    return found


def gains_results(world: BatchSettings, rule: Rule) -> list[float]:
    """Return scorers fitted to counterfactual gains over the rule, for each training."""
    found = []
    for seed in TRAINED[:2]:
        scorer = improve_rule([world], rule, seed=seed)
        drawn = reported(world, 200 + seed)
        learnt_s = makespans_s(roll_out(drawn, rule, greedy(scorer))[0]).mean()
        found.append(float(learnt_s / makespans_s(run_rule(drawn, rule)).mean()))
    return found


def published_ratios(world: BatchSettings, settings: PublishedSettings) -> dict[str, list[float]]:
    """Return the published policy over ``least-failing``, on one cluster and on redrawn ones."""
    found: dict[str, list[float]] = {}
    for name, cluster in (("one cluster", 7), ("rates redrawn", None)):
        for seed in TRAINED[:3]:
            drawn = draw_batches(world, settings.rounds, seed=seed, cluster_seed=cluster)
            policy = train_published(drawn, settings, seed=seed)
            test = draw_batches(world, 40, seed=REPORT_SEED + 300 + seed, cluster_seed=cluster)
            least_s = makespans_s(run_rule(test, RULES["least-failing"])).mean()
            found.setdefault(name, []).append(mean(makespans_published_s(test, policy)) / least_s)
    return found


def variations(rule: Rule) -> dict[str, tuple[float, float, float]]:
    """Return makespan ratios to first-fit of ``least-failing`` and ``expected`` in other worlds.

    The last value is the ratio of the mean job completion times for ``expected``.
    """
    worlds = {
        "rates drift: redrawn every 50 h": replace(STRESS, drift_h=50.0),
        "arrivals: 0.3 jobs an hour": replace(STRESS, arrivals_per_h=0.3),
        **{
            f"{gpus} GPUs, {gpus * 3 // 2} jobs": replace(STRESS, gpus=gpus, jobs=gpus * 3 // 2)
            for gpus in (8, 32, 64)
        },
    }
    found = {}
    for name, world in worlds.items():
        drawn = reported(world, 400, 4000 // world.gpus)
        first, least, best = (
            run_rule(drawn, one) for one in (RULES["first-fit"], RULES["least-failing"], rule)
        )
        base_s = makespans_s(first).mean()
        jct = average_jcts_s(best).mean() / average_jcts_s(first).mean()
        found[name] = makespans_s(least).mean() / base_s, makespans_s(best).mean() / base_s, jct
    return found
