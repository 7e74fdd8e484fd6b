"""Hazards of devices from a fitted hazard model and the cluster's history of outages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from presage.features.hazard.hazard_file import pretrained_hazard_file, read_hazard_model
from presage.features.hazard.hazard_model import DAY_S, HazardModel, Hazards
from presage.schedulers.core.failures.outage_history import OutageHistory
from presage.schedulers.core.state import State
from presage.system.arrays import Array

_ITERATIONS = 10  # at each new failure, from the result of the last one


class OutageHazards:
    """Hazard forecaster that follows a history of outages; a forecast costs O(devices).

    The base rate moves from that of the model to that of the cluster with the failures that were
    observed there. Devices get different base rates as far as their numbers of failures differ by
    more than chance and recency explain.
    """

    def __init__(self, model: HazardModel) -> None:
        self._model = model
        self._lives_s = model.half_lives_s
        self._history: OutageHistory | None = None
        self._ids: Sequence[str] = ()

    def hazards(self, state: State, within_s: float, *, interval: bool) -> Hazards:
        """Return the probability that each device fails within ``within_s`` of uptime."""
        self._follow(state.outages, state.device_ids, state.now_s)
        level = self._levels(state.outages, state.now_s)
        if interval:
            return self._model.hazards(self._decayed, within_s, level=level)
        chance = self._model.probabilities(self._decayed, within_s, level=level)
        return Hazards(chance, chance, chance)

    def _follow(self, outages: OutageHistory, ids: Sequence[str], now_s: float) -> None:
        """Update the decayed counts of repairs to ``now_s``."""
        if outages is not self._history or ids is not self._ids:
            self._history, self._ids = outages, ids
            self._row = {device_id: row for row, device_id in enumerate(ids)}
            self._decayed = np.zeros((len(ids), len(self._lives_s)))
            self._failed_rows: list[int] = []
            self._added: list[float] = []  # hazard by earlier repairs, at each failure
            self._own: _Counts | None = _counts(np.zeros(len(ids)))
            self._level = np.ones(len(ids))
            self._next, self._at_s = 0, outages.observed_from_s
        for device_id, at_s, is_repair in outages.events[self._next :]:
            row = self._row.get(device_id)
            if row is None:  # a device that has left
                continue
            self._decay(at_s)
            if is_repair:
                self._decayed[row] += 0.5 ** ((self._at_s - at_s) / self._lives_s)
                continue
            added = self._model.added_rate_per_day(self._decayed[row : row + 1])
            self._failed_rows.append(row)
            self._added.append(float(added[0]))
            self._own = None
        self._next = len(outages.events)
        self._decay(now_s)

    def _decay(self, now_s: float) -> None:
        if now_s > self._at_s:
            self._decayed *= 0.5 ** ((now_s - self._at_s) / self._lives_s)
            self._at_s = now_s

    def _levels(self, outages: OutageHistory, now_s: float) -> Array:
        """Return the factor of the base rate of each device, of shape (devices,).

        A failure counts for the base rate with the probability that no earlier repair caused it.
        That depends on the base rate: both are found by expectation maximization.
        """
        devices = len(self._ids)
        if not devices:
            return np.ones(0)
        observed_days = max(0.0, now_s - outages.observed_from_s) / DAY_S
        up_days = max(0.0, observed_days * devices - outages.down_s(now_s) / DAY_S)
        own = self._own
        if own is None:
            rows, added = np.array(self._failed_rows, np.intp), np.array(self._added)
            for _ in range(_ITERATIONS):
                base = self._model.base_per_day * self._level[rows]
                caused = np.bincount(rows, base / (base + added), minlength=devices)
                self._own = own = _counts(caused.astype(float))
                self._level = self._levels_of(own, up_days)
        assert own is not None
        return self._levels_of(own, up_days)

    def _levels_of(self, own: _Counts, up_days: float) -> Array:
        """Return the levels, given the failures of each device by its base rate."""
        devices = len(own.failures)
        level = self._model.level(own.total, up_days)
        expected = level * self._model.base_per_day * up_days / devices
        if expected <= 0 or math.isinf(own.shape):
            return np.full(devices, level)
        factors: Array = level * (own.shape + own.failures) / (own.shape + expected)
        return factors


def read_outage_hazards(path: Path | None = None) -> OutageHazards:
    """Return a forecaster by the hazard model of a file; by default the pretrained model.

    Raises
    ------
    ConfigError
        The file is missing or invalid.
    """
    return OutageHazards(read_hazard_model(path or pretrained_hazard_file()))


class _Counts(NamedTuple):
    """Failures of each device by its base rate, their sum, and the shape of their distribution."""

    failures: Array
    total: float
    shape: float


def _counts(failures: Array) -> _Counts:
    """Return counts with the shape of the gamma distribution of rates, infinite if all are equal.

    It follows by moments: the variance of counts is ``mean + mean^2 / shape``. Excess variance
    within two standard errors of 0 counts as chance.
    """
    devices, total = len(failures), float(failures.sum())
    if devices < 2:
        return _Counts(failures, total, math.inf)
    mean = total / devices
    deviation = failures - mean
    excess = float((deviation * deviation).sum()) / (devices - 1) - mean
    error = math.sqrt(2 / (devices - 1)) * mean
    return _Counts(failures, total, mean**2 / excess if excess > 2 * error else math.inf)
