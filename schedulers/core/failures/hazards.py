"""Contract of hazard forecasters, and cleaning of what they return."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from presage.features.hazard.hazard_model import Hazards
from presage.system.arrays import Array

if TYPE_CHECKING:
    from presage.schedulers.core.state import State


class Hazard(NamedTuple):
    """Probability that a device fails within a time, with its interval."""

    probability: float
    low: float
    high: float


class HazardForecaster(Protocol):
    """Source of hazards: a fitted model on the history of outages, or an oracle."""

    def hazards(self, state: State, within_s: float, *, interval: bool) -> Hazards:
        """Return the probability that each device fails within ``within_s`` of uptime.

        Without ``interval`` the bounds may equal the probabilities, which is faster.
        """
        ...


def clean_hazards(hazards: Hazards | None, devices: int) -> Hazards:
    """Return usable hazards: 0 for all devices without a forecast, 1 where it is not a number."""
    if hazards is None or any(np.shape(one) != (devices,) for one in hazards):
        return Hazards(*(np.zeros(devices) for _ in Hazards._fields))
    chance = _clean(hazards.probability)
    if hazards.low is hazards.high is hazards.probability:  # computed without the interval
        return Hazards(chance, chance, chance)
    return Hazards(
        chance,
        np.minimum(_clean(hazards.low), chance),
        np.maximum(_clean(hazards.high), chance),
    )


def _clean(values: Array) -> Array:
    found: Array = np.minimum(np.maximum(np.where(np.isnan(values), 1.0, values), 0.0), 1.0)
    return found
