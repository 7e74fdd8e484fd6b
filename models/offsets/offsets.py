"""Offsets of one quantity: what reported outcomes tell of the errors of its forecasts."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from presage.features.forecast import JOB_ON_DEVICE
from presage.features.quantities.quantity import LEAST_FRACTION, Quantity
from presage.models.offsets.evidence import Effect, Terms
from presage.models.offsets.random_effects import FittedEffects, Spread
from presage.models.offsets.terms import JOB, SOURCE_OF, solo_job
from presage.system.arrays import Array


def forecast_error(quantity: Quantity, measured: float, median: float) -> float:
    """Return the logarithm of measured over predicted, or the difference of log-odds; NaN for 0."""
    if not quantity.is_scale:
        return _log_odds(measured) - _log_odds(median)
    if not (measured > 0 and median > 0):
        return math.nan
    return math.log(measured / median)


def move_quantiles(values: Array, errors: Array, quantity: Quantity) -> Array:
    """Return quantiles moved by the expected errors of their rows, within physical bounds.

    Parameters
    ----------
    values : ndarray of shape (rows, levels)
        In the quantity's unit.
    errors : ndarray of shape (rows,)
        As :func:`forecast_error`.
    """
    factors = np.exp(errors)[:, None]
    moved = values * factors
    if not quantity.is_scale:
        moved /= 1 + values * (factors - 1)
    return np.asarray(np.clip(moved, quantity.minimum, quantity.maximum))


def _log_odds(fraction: float) -> float:
    inside = min(max(fraction, LEAST_FRACTION), 1 - LEAST_FRACTION)
    return math.log(inside / (1 - inside))


@dataclass(frozen=True, slots=True)
class Offset:
    """Expected error of a forecast.

    Attributes
    ----------
    error : float
        As :func:`forecast_error`.
    runs : int
        Outcomes that it was learned from: those of the job on the device, if there are any, else
        those of the effect with the most.
    source : str
        One of ``CORRECTION_SOURCES``: what these outcomes have in common with the forecast.
    """

    error: float
    runs: int
    source: str


NO_OFFSET = Offset(0.0, 0, "")


@dataclass(frozen=True)
class QuantityOffsets:
    """Fitted effects of one quantity, and their prior deviations."""

    fitted: FittedEffects
    spread: Spread

    @cached_property
    def jobs(self) -> frozenset[Hashable]:
        """Jobs with an effect or a cell of their own; of quantities of solo jobs."""
        of_effects = {effect[1] for effect in self.fitted.effects if effect[0] == JOB}
        return frozenset(of_effects | {solo_job(cell) for cell in self.fitted.cells})

    def find(self, terms: Terms, cell: Hashable) -> Offset:
        """Return the offset of a forecast."""
        fitted = self.fitted
        error, runs, source = (
            fitted.cells.get(cell, 0.0),
            fitted.cell_runs.get(cell, 0),
            JOB_ON_DEVICE,
        )
        is_repeated = runs > 0
        for effect, weight in terms:
            if effect in fitted.effects:
                error += weight * fitted.effects[effect]
                if not is_repeated and fitted.runs[effect] > runs:
                    runs, source = fitted.runs[effect], SOURCE_OF[str(effect[0])]
        return Offset(error, runs, source) if runs else NO_OFFSET

    def deviation_left(self, effects: Iterable[Effect]) -> float:
        """Return the deviation of effects that remains after the runs, as a fraction."""
        spread, before, after = self.spread, 0.0, 0.0
        for effect in effects:
            own = spread.effects.get(str(effect[0]), 0.0) ** 2
            others = max(spread.total**2 - own, 1e-12)
            cells = self.fitted.cell_count.get(effect, 0)
            before += own
            after += own * others / (others + cells * own)
        return math.sqrt(after / before) if before else 1.0

    def cell_deviation_left(self, cell: Hashable) -> float:
        """Return the deviation of a job that remains after its runs on the device."""
        runs = self.fitted.cell_runs.get(cell, 0)
        unknown = self.spread.cell**2
        if not runs or not unknown:
            return 1.0
        noise = self.spread.noise**2 / runs
        return math.sqrt(noise / (noise + unknown))
