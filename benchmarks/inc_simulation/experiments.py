"""Experiments of the phase simulator; each returns mean and worst speed of the jobs of a set."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from benchmarks.inc_simulation.job_sets import job_set
from presage.collectives.arbiter.arbiter_options import ArbiterOptions
from presage.collectives.arbiter.planner import PlannerOptions
from presage.collectives.simulation.bounds import largest_gain
from presage.collectives.simulation.compare import REFERENCE, RULES, run_rules, speeds
from presage.collectives.simulation.phased_job import PhasedJob
from presage.collectives.simulation.placement import (
    Placement,
    largest_load,
    placements,
    predicted_gain,
)

DURATION_S = 60.0
JITTERS = (0.0, 0.03, 0.1)
REPORTED = range(24)
TUNING = range(1000, 1006)  # options are compared on these sets
PLACED = range(500, 508)
STARTS = ("together", "random", "staggered")
OPTIONS = {
    f"horizon {horizon_s:g} s, every {plan_s:g} s, margin x{margin:g}": ArbiterOptions(
        plan_s=plan_s, planner=PlannerOptions(horizon_s=horizon_s, margin=margin)
    )
    for horizon_s, plan_s in ((2.0, 0.25), (10.0, 0.25), (10.0, 1.0), (40.0, 0.25))
    for margin in (0.0, 1.0)
}
PLACEMENTS = ("random", "least load", "largest gain", "best of all")


class Score(NamedTuple):
    """Mean and smallest speed of the jobs of a set, and the number of refused AllReduces."""

    mean: float
    worst: float
    refused: float


def tune(seed: int, jitter: float, name: str) -> Score:
    """Return the score of the arbiter with options of ``OPTIONS``."""
    jobs = job_set(seed, jitter=jitter)
    return _score(jobs, {"s": 1}, "time-saved", seed, OPTIONS[name])


def tune_first_come(seed: int, jitter: float) -> Score:
    """Return the score of first-come on a set on which options are compared."""
    return _score(job_set(seed, jitter=jitter), {"s": 1}, "first-come", seed)


def report(seed: int, jitter: float) -> dict[str, Score]:
    """Return the score of each rule, and both bounds."""
    jobs = job_set(seed, jitter=jitter)
    rules = (*RULES, REFERENCE)
    found = run_rules(jobs, {"s": 1}, rules, duration_s=DURATION_S, seed=seed)
    scores = {}
    for rule in RULES:
        speed = speeds(found[rule], found[REFERENCE])
        scores[rule] = Score(speed.mean, speed.worst, speed.refused)
    bound = largest_gain(jobs, 1)
    return {**scores, "ceiling": Score(bound, bound, 0)}


def place(seed: int, how: str, rule: str) -> Score:
    """Return the score of eight jobs on two switches, placed in one of the ways."""
    jobs = job_set(seed, 8)
    all_of_them = list(placements(jobs, ["s", "t"], 4))

    def score(placement: Placement) -> Score:
        placed = [job for here in placement.values() for job in here]
        return _score(placed, {"s": 1, "t": 1}, rule, seed)

    if how == "least load":
        return score(min(all_of_them, key=largest_load))
    if how == "largest gain":
        return score(max(all_of_them, key=predicted_gain))
    if how == "best of all":
        return max(score(placement) for placement in all_of_them)
    drawn = random.Random(seed).sample(all_of_them, 3)
    return Score(*(statistics.mean(values) for values in zip(*map(score, drawn), strict=True)))


def start(seed: int, how: str, rule: str, jitter: float) -> Score:
    """Return the score of four equal jobs that start in one of the ways."""
    first = job_set(seed, 1, jitter=jitter)[0]
    period_s = first.solo_s(None)
    source = random.Random(seed)
    starts_s = {
        "together": [0.0] * 4,
        "random": [source.uniform(0, period_s) for _ in range(4)],
        "staggered": [i * period_s / 4 for i in range(4)],
    }[how]
    jobs = [replace(first, job_id=f"job{i}", start_s=start_s) for i, start_s in enumerate(starts_s)]
    return _score(jobs, {"s": 1}, rule, seed)


def _score(
    jobs: Sequence[PhasedJob],
    slots: dict[str, int],
    rule: str,
    seed: int,
    options: ArbiterOptions | None = None,
) -> Score:
    rules = (rule, REFERENCE)
    found = run_rules(jobs, slots, rules, duration_s=DURATION_S, options=options, seed=seed)
    speed = speeds(found[rule], found[REFERENCE])
    return Score(speed.mean, speed.worst, speed.refused)


def average(scores: Sequence[Score]) -> Score:
    """Return the mean of scores over sets."""
    return Score(*(statistics.mean(values) for values in zip(*scores, strict=True)))
