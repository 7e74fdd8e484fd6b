"""Contract of hazard forecasters, and cleaning of what they return.

numpy is imported when hazards are computed: commands that only ask a controller start without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from presage.features.hazard.hazard_model import Hazards
    from presage.schedulers.core.state import State
    from presage.system.arrays import Array


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
    import numpy as np

    from presage.features.hazard.hazard_model import Hazards

    if hazards is None or any(np.shape(one) != (devices,) for one in hazards):
        return Hazards(*(np.zeros(devices) for _ in Hazards._fields))

    def clean(values: Array) -> Array:
        return np.clip(np.where(np.isnan(values), 1.0, values), 0.0, 1.0)

    chance = clean(hazards.probability)
    if hazards.low is hazards.high is hazards.probability:  # computed without the interval
        return Hazards(chance, chance, chance)
    return Hazards(
        chance, np.minimum(clean(hazards.low), chance), np.maximum(clean(hazards.high), chance)
    )
