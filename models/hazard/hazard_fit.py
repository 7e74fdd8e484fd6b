"""Fit of the hazard model: expectation maximization, half-lives by cross-validation over units."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from presage.errors import TrainingError
from presage.features.hazard.hazard_model import DAY_S, HazardModel
from presage.models.hazard.hazard_score import log_losses
from presage.models.hazard.unit_days import UnitDays
from presage.system.arrays import Array, Mask

_ITERATIONS = 200
_MOST_FOLLOW_UPS = 0.95


@dataclass(frozen=True, slots=True)
class HazardSettings:
    """Settings of the fit, as in the section ``hazard`` of params.yaml.

    Attributes
    ----------
    until_day : int or None
        Days from this one on are not used; None for all days.
    half_lives_days : tuple of tuple of float
        Candidates; an empty one is a constant hazard.
    folds : int
        Folds of units for the choice between the candidates.
    draws : int
        Bootstrap draws for the interval.
    block_days : int
        Length of the blocks of days that are drawn together, as failures come in waves.
    level_failures : float
        See :class:`presage.features.hazard.hazard_model.HazardModel`.
    seed : int
    """

    until_day: int | None
    half_lives_days: tuple[tuple[float, ...], ...]
    folds: int
    draws: int
    block_days: int
    level_failures: float
    seed: int


def fit_hazard_model(rows: UnitDays, settings: HazardSettings) -> HazardModel:
    """Fit the half-lives, the rates and their bootstrap draws.

    Raises
    ------
    TrainingError
        No unit failed.
    """
    losses = cross_validate(rows, settings)
    half_lives = min(losses, key=lambda one: losses[one])
    model = fit_rates(rows, half_lives)
    draws = _bootstrap(rows, half_lives, settings)
    return replace(
        model,
        draws=draws,
        level_failures=settings.level_failures,
        units=len(np.unique(rows.unit)),
        days=float(len(np.unique(rows.day))),
        failures=int(rows.fails.sum()),
    )


def fit_rates(rows: UnitDays, half_lives_days: tuple[float, ...]) -> HazardModel:
    """Fit the base rate and the follow-ups for given half-lives."""
    base, follow_ups = _fit(rows.fails, _added(rows, half_lives_days))
    return HazardModel(base, follow_ups, half_lives_days)


def cross_validate(rows: UnitDays, settings: HazardSettings) -> dict[tuple[float, ...], float]:
    """Return the mean log loss of one day for each candidate, on units left out of its fit."""
    units = int(rows.unit.max()) + 1 if len(rows) else 0
    fold_of = np.random.default_rng(settings.seed).permutation(units) % settings.folds
    fold = fold_of[rows.unit]
    losses: dict[tuple[float, ...], float] = {}
    for candidate in settings.half_lives_days:
        added, total = _added(rows, candidate), 0.0
        for held_out in range(settings.folds):
            test = fold == held_out
            base, follow_ups = _fit(rows.fails[~test], added[~test])
            chance = -np.expm1(-(base + follow_ups * added[test]))
            total += float(log_losses(rows.fails[test], chance).sum())
        losses[candidate] = total / len(rows)
    return losses


def _added(rows: UnitDays, half_lives_days: Sequence[float]) -> Array:
    """Return the expected follow-ups within a day for ``follow_ups`` = 1, of shape (rows,)."""
    unit = HazardModel(1.0, 0.5, tuple(half_lives_days))
    return unit.added_failures(rows.decayed_repairs(half_lives_days), DAY_S)


def _fit(fails: Mask, added: Array, weights: Array | None = None) -> tuple[float, float]:
    """Return the base rate per day and the follow-ups of the highest Poisson likelihood.

    Each failure is attributed to the base rate or to earlier repairs by expectation maximization.
    """
    weight = np.ones(len(fails)) if weights is None else weights
    failed, days = weight * fails, float(weight.sum())
    failures, mass = float(failed.sum()), float(weight @ added)
    if not failures:
        raise TrainingError("no node failed in the fault history; nothing to fit")
    base, follow_ups = failures / days, 0.2 if mass else 0.0
    failed, added = failed[fails], added[fails]
    for _ in range(_ITERATIONS):
        by_base = float(failed @ (base / (base + follow_ups * added)))
        base = by_base / days
        if mass:
            follow_ups = min(_MOST_FOLLOW_UPS, (failures - by_base) / mass)
    return base, follow_ups


def _bootstrap(
    rows: UnitDays, half_lives: tuple[float, ...], settings: HazardSettings
) -> tuple[tuple[float, float], ...]:
    """Return fits to drawn blocks of days; each block has all units."""
    rng = np.random.default_rng(settings.seed)
    block = (rows.day - rows.day.min()) // settings.block_days
    count, added = int(block.max()) + 1, _added(rows, half_lives)
    draws: list[tuple[float, float]] = []
    while len(draws) < settings.draws:
        weights = rng.multinomial(count, np.full(count, 1 / count)).astype(np.float64)[block]
        if weights @ rows.fails:
            base, follow_ups = _fit(rows.fails, added, weights)
            draws.append((float(f"{base:.4g}"), float(f"{follow_ups:.4g}")))
    return tuple(draws)
