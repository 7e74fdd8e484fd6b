"""Learner of offsets: evidence of the outcomes of one release, and the effects fitted to it."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace

import numpy as np

from presage.features.quantities.quantity import Quantity
from presage.features.quantities.quantity_registry import INTERFERENCE, QUANTITIES
from presage.models.drift.drift_test import JudgedQuantity
from presage.models.offsets import terms
from presage.models.offsets.evidence import Evidence, EvidenceSums, Terms
from presage.models.offsets.offsets import QuantityOffsets, forecast_error, move_quantiles
from presage.models.offsets.random_effects import Spread, fit_effects
from presage.models.offsets.spreads import spread_of
from presage.serving.outcomes.judged import JudgedRun
from presage.serving.predictor.corrections import Offsets

MAX_OUTCOMES = 10_000  # newest ones that count
# Errors count as at most this many prior standard deviations.
LARGEST_DEVIATIONS = 2.5
_REFIT = 0.02  # part of the outcomes that must be new before effects are fitted again


class OffsetLearner:
    """Evidence of outcomes, which can be withdrawn, and the offsets that follow from it.

    Outcomes must be of forecasts by one release without offsets.

    Attributes
    ----------
    implausible : int
        Errors beyond a factor of 100, which do not count.
    is_changed : bool
        Whether outcomes were added or withdrawn since :meth:`offsets` was called.
    """

    def __init__(self) -> None:
        self.implausible = 0
        self._quantities: dict[str, Quantity] = {
            one.forecast_field: one for one in QUANTITIES.values()
        }
        self._spreads: dict[str, Spread] = {name: spread_of(q) for name, q in QUANTITIES.items()}
        self._sums = {
            name: EvidenceSums(LARGEST_DEVIATIONS * spread.total)
            for name, spread in self._spreads.items()
        }
        self._outcomes: dict[str, list[tuple[str, Evidence]]] = {}  # by key, the oldest first
        self._fitted: dict[str, QuantityOffsets] = {}
        self._unfitted = 0  # changes since the last fit
        self.is_changed = False

    def __len__(self) -> int:
        return len(self._outcomes)

    def add(self, run: JudgedRun) -> None:
        """Add an outcome; a key that is known already changes nothing."""
        if run.key in self._outcomes:
            return
        added = []
        for judged in run.quantities:
            quantity = self._quantities.get(judged.quantity)
            if quantity is None:  # the run time follows from the step time
                continue
            evidence = _evidence(run, judged, quantity)
            if self._sums[quantity.name].add(evidence):
                added.append((quantity.name, evidence))
            else:
                self.implausible += 1
        if added:
            self._outcomes[run.key] = added
            self._count_change()
        if len(self._outcomes) > MAX_OUTCOMES:
            self.withdraw(next(iter(self._outcomes)))

    def withdraw(self, key: str) -> None:
        """Remove an outcome, as if it had never been added; an unknown key changes nothing."""
        for name, evidence in self._outcomes.pop(key, ()):
            self._sums[name].remove(evidence)
            self._count_change()

    def _count_change(self) -> None:
        self._unfitted += 1
        self.is_changed = True

    def offsets(self) -> Offsets:
        """Return the offsets that follow from all outcomes."""
        self.is_changed = False
        return self._fit(0)

    def _fit(self, most_unfitted: float) -> Offsets:
        """Return offsets that lack at most so many changes: fitting takes milliseconds."""
        if self._unfitted > most_unfitted:
            self._fitted = {
                name: QuantityOffsets(fit_effects(sums.cells, self._spreads[name]), spread)
                for (name, sums), spread in zip(
                    self._sums.items(), self._spreads.values(), strict=True
                )
                if len(sums)
            }
            self._unfitted = 0
        return Offsets(self._fitted)

    def correct(self, run: JudgedRun) -> list[JudgedQuantity]:
        """Return an outcome's comparisons with forecasts that have the offsets of earlier ones.

        Quantities without an offset are left out.
        """
        known = self._fit(_REFIT * len(self._outcomes))
        return [
            moved
            for judged in run.quantities
            if (quantity := self._quantities.get(judged.quantity)) is not None
            and (moved := _moved(run, judged, quantity, known)) is not None
        ]


def _moved(
    run: JudgedRun, judged: JudgedQuantity, quantity: Quantity, known: Offsets
) -> JudgedQuantity | None:
    of_quantity = known.by_quantity.get(quantity.name)
    if of_quantity is None:
        return None
    offset = of_quantity.find(*_place(run, quantity))
    ends = np.array([[judged.low, judged.median, judged.high]])
    low, median, high = move_quantiles(ends, np.array([offset.error]), quantity)[0].tolist()
    return replace(judged, low=low, median=median, high=high)


def _place(run: JudgedRun, quantity: Quantity) -> tuple[Terms, Hashable]:
    """Return the terms and the cell of a quantity of an outcome."""
    kind, job = run.device_kind, run.job
    if quantity is INTERFERENCE:
        return terms.pair_terms(kind, job, run.others), terms.pair_cell(kind, job, run.others)
    parts = terms.solo_terms(kind, run.precision, job, run.bound)
    return parts, terms.solo_cell(kind, job, run.share)


def _evidence(run: JudgedRun, judged: JudgedQuantity, quantity: Quantity) -> Evidence:
    parts, cell = _place(run, quantity)
    return Evidence(cell, parts, forecast_error(quantity, judged.measured, judged.median))
