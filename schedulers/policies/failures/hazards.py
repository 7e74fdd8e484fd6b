"""Failure rates of devices as policies use them: given, or from forecasts; always usable."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from presage.errors import ConfigError
from presage.schedulers.core.forecasts import Forecasts
from presage.schedulers.core.state import State
from presage.system.arrays import Array

DAY_S = 86_400.0
MOST_PER_S = 1.0  # a device that fails within a second


class HazardSource(Protocol):
    """Source of the current failure rates of devices."""

    def rates_per_s(self, state: State, forecasts: Forecasts) -> Array:
        """Return the expected failures per second of every device; NaN if unknown."""
        ...


class ForecastHazards:
    """Source that reads the forecasts: the mean rate at which a device fails within a day."""

    def rates_per_s(self, state: State, forecasts: Forecasts) -> Array:
        """Return the rates by which the forecast probabilities follow; infinite for 1."""
        probability = forecasts.hazards(state, DAY_S).probability
        with np.errstate(divide="ignore"):
            found: Array = -np.log1p(-probability) / DAY_S
        return found


class FixedHazards:
    """Source with constant rates, such as the true ones of a simulation.

    Parameters
    ----------
    rates_per_s : sequence of float
        Failures per second of each device, by its number.
    """

    def __init__(self, rates_per_s: Sequence[float] | Array) -> None:
        self._rates_per_s = np.asarray(rates_per_s, dtype=float)

    def rates_per_s(self, state: State, forecasts: Forecasts) -> Array:
        """Return the rates that were given.

        Raises
        ------
        ConfigError
            The number of rates is not the cluster's number of devices.
        """
        del forecasts
        if self._rates_per_s.shape != (state.cluster.devices,):
            raise ConfigError(
                f"{self._rates_per_s.size} failure rates for {state.cluster.devices} devices; give "
                "one for each device"
            )
        return self._rates_per_s


def clean_rates(rates_per_s: Array) -> Array:
    """Return finite rates of at least 0.

    An unknown (NaN) or negative rate becomes the median of the known ones, or 0 if none is known. A
    rate is limited to one failure per second.
    """
    with np.errstate(invalid="ignore"):
        is_known = rates_per_s >= 0
    found: Array = rates_per_s
    if not is_known.all():
        usual = float(np.median(rates_per_s[is_known])) if is_known.any() else 0.0
        found = np.where(is_known, rates_per_s, usual)
    return np.minimum(found, MOST_PER_S)
