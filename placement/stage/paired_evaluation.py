"""Paired evaluation of a placement scorer against every heuristic, on the same failures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from presage.placement.core.batches import BatchSettings, Ints, draw_batches
from presage.placement.core.clusters import makespans_s
from presage.placement.core.rules import MATCHED, RULES, Rule, run_rule
from presage.placement.learnt.rollout import Choose, Observation, roll_out
from presage.schedulers.policies.failures.learnt.placement_scorer import PlacementScorer
from presage.system.arrays import Array

DIGITS = 6  # of makespans, so that platforms agree


class PairedRatio(NamedTuple):
    """Ratio of mean makespans on the same batches, with its interval.

    Attributes
    ----------
    ratio, low, high : float
    is_tie : bool
        Whether all makespans are equal.
    """

    ratio: float
    low: float
    high: float
    is_tie: bool


def heuristics(rule: Rule) -> dict[str, Rule]:
    """Return the heuristics that a scorer must beat, by name; ``rule`` is the tuned one."""
    return {
        "random": RULES["random"],
        "first-fit": RULES["first-fit"],
        "least-failing": RULES["least-failing"],
        "matched": Rule(choice=MATCHED),
        "tuned order": rule._replace(patience=0.0),
        "expected": rule,
    }


def heuristic_makespans(
    worlds: tuple[BatchSettings, ...], rule: Rule, batches: int, *, seed: int
) -> dict[str, Array]:
    """Return the makespans of each heuristic on the evaluation's batches."""
    found: dict[str, list[Array]] = {name: [] for name in heuristics(rule)}
    for i, world in enumerate(worlds):
        drawn = draw_batches(world, batches, seed=seed + i)
        for name, one in heuristics(rule).items():
            found[name].append(makespans_s(run_rule(drawn, one, seed=seed)))
    return {name: np.concatenate(values) for name, values in found.items()}


def scorer_makespans(
    worlds: tuple[BatchSettings, ...], rule: Rule, model: bytes, batches: int, *, seed: int
) -> Array:
    """Return the makespans of an exported scorer on the evaluation's batches."""
    choose = greedy_onnx(PlacementScorer(model))
    found = [
        makespans_s(roll_out(draw_batches(world, batches, seed=seed + i), rule, choose)[0])
        for i, world in enumerate(worlds)
    ]
    return np.concatenate(found)


def greedy_onnx(scorer: PlacementScorer) -> Choose:
    """Return a choice of the actions with the highest scores of an ONNX file."""

    def choose(observation: Observation, rule_action: Ints) -> Ints:
        del rule_action
        found: Ints = scorer.batch_logits(*observation).argmax(axis=1)
        return found

    return choose


def worlds_of(
    base: BatchSettings, gpus: tuple[int, ...], jobs_per_gpu: float
) -> tuple[BatchSettings, ...]:
    """Return the settings for clusters of several sizes."""
    return tuple(replace(base, gpus=n, jobs=int(n * jobs_per_gpu)) for n in gpus)


def paired_ratio(
    learnt_s: Array, other_s: Array, *, confidence: float, resamples: int, seed: int
) -> PairedRatio:
    """Return the ratio of mean makespans, with a percentile interval of a paired bootstrap.

    Parameters
    ----------
    learnt_s, other_s : ndarray of shape (batches,)
        Makespans on the same batches.
    """
    rng = np.random.default_rng(seed)
    drawn = rng.integers(0, len(learnt_s), (resamples, len(learnt_s)))
    ratios = learnt_s[drawn].mean(axis=1) / other_s[drawn].mean(axis=1)
    low, high = np.quantile(ratios, [(1 - confidence) / 2, (1 + confidence) / 2])
    ratio = float(learnt_s.mean() / other_s.mean())
    return PairedRatio(ratio, float(low), float(high), bool((learnt_s == other_s).all()))


def rounded(makespans: Mapping[str, Array]) -> dict[str, list[float]]:
    """Return makespans for JSON."""
    return {
        name: [float(f"{value:.{DIGITS}g}") for value in values]
        for name, values in makespans.items()
    }
