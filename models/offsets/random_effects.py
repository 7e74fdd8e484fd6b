"""Random effects of devices, jobs and pairs, estimated from the errors of forecasts.

The error of a run is the sum of its effects, a deviation of its cell and noise. Each is normal with
mean 0 and a known variance, so an effect is shrunk towards 0, the release, the more the fewer runs
it has. Huber weights limit the influence of a cell that contradicts all others.

References
----------
Robinson: That BLUP is a good thing: the estimation of random effects, Statistical Science 6(1),
1991. Huber: Robust estimation of a location parameter, Annals of Mathematical Statistics 35(1),
1964.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from presage.models.offsets.evidence import Cell, Effect, Terms
from presage.system.arrays import Array, Ints

# Standardised error beyond which a cell loses weight.
HUBER = 2.0
_REWEIGHTINGS, _MAX_STEPS, _TOLERANCE = 4, 200, 1e-9


@dataclass(frozen=True)
class Spread:
    """Standard deviations of errors, as logarithms.

    Attributes
    ----------
    effects : mapping of str to float
        By level; a level that is not listed has no effects.
    cell : float
        Of a job on a device beyond these effects: what the release does not explain.
    noise : float
        Of repeated runs.
    """

    effects: Mapping[str, float]
    cell: float
    noise: float

    @property
    def total(self) -> float:
        """Standard deviation of the first run of an unknown job on an unknown device."""
        parts = (*self.effects.values(), self.cell, self.noise)
        return float(np.sqrt(sum(part**2 for part in parts)))

    def of_cell(self, runs: int) -> float:
        """Return the variance of the mean of a cell, given its effects."""
        return self.cell**2 + self.noise**2 / runs


@dataclass(frozen=True)
class FittedEffects:
    """Posterior means of effects and of the deviations of cells, and the runs behind them.

    ``runs`` and ``cell_count`` are by effect: runs, and cells with the effect.
    """

    effects: Mapping[Effect, float] = field(default_factory=dict)
    cells: Mapping[Hashable, float] = field(default_factory=dict)
    runs: Mapping[Effect, int] = field(default_factory=dict)
    cell_count: Mapping[Effect, int] = field(default_factory=dict)
    cell_runs: Mapping[Hashable, int] = field(default_factory=dict)

    def offset(self, terms: Terms, cell: Hashable = None) -> float:
        """Return the expected error of a run."""
        shared = sum(weight * self.effects.get(effect, 0.0) for effect, weight in terms)
        return shared + self.cells.get(cell, 0.0)


def fit_effects(cells: Mapping[Hashable, Cell], spread: Spread) -> FittedEffects:
    """Return the posterior means, given the variances of ``spread``."""
    if not cells:
        return FittedEffects()
    design = _Design(cells.values(), spread)
    effects = design.solve()
    runs: dict[Effect, int] = dict.fromkeys(design.effects, 0)
    count = dict.fromkeys(design.effects, 0)
    for cell in cells.values():
        for effect, _ in cell.terms:
            if effect in runs:
                runs[effect] += cell.runs
                count[effect] += 1
    of_cell = design.deviations(effects)
    return FittedEffects(
        dict(zip(design.effects, effects.tolist(), strict=True)),
        dict(zip(cells, of_cell.tolist(), strict=True)),
        runs,
        count,
        {key: cell.runs for key, cell in cells.items()},
    )


class _Design:
    """Sparse design matrix of cells (rows) and effects (columns)."""

    def __init__(self, cells: Iterable[Cell], spread: Spread) -> None:
        position: dict[Effect, int] = {}
        rows, columns, weights, means, variances, runs = [], [], [], [], [], []
        for row, cell in enumerate(cells):
            means.append(cell.mean)
            variances.append(spread.of_cell(cell.runs))
            runs.append(cell.runs)
            for effect, weight in cell.terms:
                if spread.effects.get(str(effect[0]), 0.0) > 0:
                    rows.append(row)
                    columns.append(position.setdefault(effect, len(position)))
                    weights.append(weight)
        self.effects = list(position)
        self._rows, self._columns = np.array(rows, np.intp), np.array(columns, np.intp)
        self._weights = np.array(weights, np.float64)
        self._mean, self._variance = np.array(means), np.array(variances)
        self._shrunk = spread.cell**2 / self._variance
        self._prior = np.array([spread.effects[str(effect[0])] ** -2 for effect in position])

    def solve(self) -> Array:
        """Return the posterior means of the effects."""
        effects = np.zeros(len(self.effects))
        precision = 1 / self._variance
        for _ in range(_REWEIGHTINGS if len(effects) else 0):
            z = np.abs(self._mean - self._of_rows(effects)) / np.sqrt(self._variance)
            weighted = precision * np.minimum(1.0, HUBER / np.maximum(z, HUBER))
            effects = self._conjugate_gradient(weighted, effects)
        return effects

    def deviations(self, effects: Array) -> Array:
        """Return the posterior mean of each cell's deviation."""
        return np.asarray(self._shrunk * (self._mean - self._of_rows(effects)))

    def _conjugate_gradient(self, precision: Array, start: Array) -> Array:
        diagonal = self._prior + self._of_columns(precision, squared=True)
        x = start.copy()
        left = self._of_columns(precision * (self._mean - self._of_rows(x))) - self._prior * x
        scaled = left / diagonal
        direction, product = scaled, float(left @ scaled)
        until = _TOLERANCE**2 * max(product, 1e-30)
        for _ in range(_MAX_STEPS):
            if product <= until:
                break
            image = self._prior * direction
            image += self._of_columns(precision * self._of_rows(direction))
            step = product / float(direction @ image)
            x, left = x + step * direction, left - step * image
            scaled = left / diagonal
            previous, product = product, float(left @ scaled)
            direction = scaled + product / previous * direction
        return x

    def _of_rows(self, effects: Array) -> Array:
        """Return the sum of the effects of each cell."""
        return _sums(self._rows, self._weights * effects[self._columns], len(self._mean))

    def _of_columns(self, values: Array, *, squared: bool = False) -> Array:
        """Return the weighted sum of values of cells for each effect."""
        weights = self._weights**2 if squared else self._weights
        return _sums(self._columns, weights * values[self._rows], len(self.effects))


def _sums(at: Ints, values: Array, size: int) -> Array:
    out: Array = np.bincount(at, values, size).astype(np.float64)
    return out
