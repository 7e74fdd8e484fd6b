"""Settings of the sharing policy."""

from __future__ import annotations

import math
from typing import NamedTuple

from presage.errors import ConfigError
from presage.schedulers.core.allocation import FULL_DEVICE_MILLI

URGENT_WEIGHT = 10  # factor of a latency-sensitive job's share, where shares are weights


class Settings(NamedTuple):
    """Settings by which devices are shared.

    Attributes
    ----------
    step_milli : int
        Compute that a latency-sensitive job gets in addition at each check that finds its SLO
        violated; a tenth of a device, as published (N4).
    least_milli : int
        Least compute of a best-effort job; it is evicted rather than shrunk further (N6, N9).
    check_s : float
        Seconds between checks of SLOs.
    overcommit : float
        Factor by which predicted compute may exceed a device.
    home_s : float
        Seconds for which an evicted best-effort job waits for the device that it was on; then it
        may start elsewhere (N9).
    ageing_s : float
        Waiting time after which a best-effort job precedes latency-sensitive jobs; never if
        infinite (C6).
    reserve : float
        Fraction of the margin between the predicted run time and the SLO that a check holds back,
        since rebalancing takes effect gradually (N3).
    """

    step_milli: int = 100
    least_milli: int = 100
    check_s: float = 10.0
    overcommit: float = 1.0
    home_s: float = 60.0
    ageing_s: float = math.inf
    reserve: float = 0.5

    def check(self) -> Settings:
        """Return the settings themselves, if all are valid.

        Raises
        ------
        ConfigError
            A setting is invalid; the message names it.
        """
        for name in ("step_milli", "least_milli"):
            value = getattr(self, name)
            if not (isinstance(value, int) and 1 <= value <= FULL_DEVICE_MILLI):
                raise ConfigError(
                    f"sharing: {name}={value}, must be a whole number of milli-devices within 1 "
                    f"and {FULL_DEVICE_MILLI}"
                )
        for name, least in (("check_s", 1.0), ("overcommit", 1.0), ("home_s", 0.0)):
            if not least <= getattr(self, name) < math.inf:
                raise ConfigError(
                    f"sharing: {name}={getattr(self, name)}, must be a finite number >= {least:g}"
                )
        if not 0.0 <= self.reserve <= 1.0:
            raise ConfigError(f"sharing: reserve={self.reserve}, must be within 0 and 1")
        if not self.ageing_s > 0:
            raise ConfigError(f"sharing: ageing_s={self.ageing_s}, must be > 0")
        return self
