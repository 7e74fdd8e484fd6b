"""What an operator may set of sharing."""

from __future__ import annotations

import math
from typing import NamedTuple

from presage.errors import ConfigError
from presage.schedulers.core.allocation import FULL_DEVICE_MILLI

URGENT_WEIGHT = 10  # times that a latency-sensitive job's share counts, where shares are weights


class Settings(NamedTuple):
    """How devices are shared.

    Attributes
    ----------
    step_milli : int
        What a latency-sensitive job that is late is given in addition, each time it is looked at:
        a tenth of a device, as published (N4).
    least_milli : int
        What a best-effort job is left with at least; with less it is ended (N6, N9).
    check_s : float
        From one look at quality of service to the next.
    overcommit : float
        How many times over a device's compute is given away.
    home_s : float
        How long a best-effort job that was ended waits for room where it was; then it may go
        elsewhere (N9).
    ageing_s : float
        A best-effort job that has waited longer goes before latency-sensitive ones; infinite: none
        does (C6).
    reserve : float
        Part of the margin between the foretold run time and the promised one that is kept in hand
        at a look: what is then done takes effect little by little (N3).
    """

    step_milli: int = 100
    least_milli: int = 100
    check_s: float = 10.0
    overcommit: float = 1.0
    home_s: float = 60.0
    ageing_s: float = math.inf
    reserve: float = 0.5

    def check(self) -> Settings:
        """The same, if each can be.

        Raises
        ------
        ConfigError
            Names the setting.
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
