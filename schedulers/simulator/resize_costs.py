"""Time that an elastic job loses when it starts and when its number of devices changes."""

from __future__ import annotations

import math
from dataclasses import dataclass

from presage.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ResizeCosts:
    """Seconds without progress, for each change of the number of devices of an elastic job.

    The defaults of both changes were measured with torch 2.13 on gloo, for 2 to 3 workers on one
    machine: survivors re-formed the group in the process within 51 to 82 ms, and after the death of
    a worker within 0.5 s. ``presage simulate --resize-s`` and ``--resize-after-failure-s`` set
    others.

    Attributes
    ----------
    planned_s : float
        A change that the policy decided.
    after_failure_s : float
        A change because some devices failed, with the time to detect that.
    startup_s : float
        Time that a new worker needs before its first step. A job that starts waits for it. A job
        that gets new devices continues at its former speed meanwhile, and loses what it would have
        done with them.
    measuring_s : float
        Training time at a size after which the policy knows the speed of the job at that size.
    """

    planned_s: float = 0.06
    after_failure_s: float = 0.5
    startup_s: float = 0.0
    measuring_s: float = 0.0

    def __post_init__(self) -> None:
        for field in ("planned_s", "after_failure_s", "startup_s", "measuring_s"):
            value = getattr(self, field)
            if not 0 <= value < math.inf:
                raise ConfigError(f"resize cost {field}={value}, must be a finite number >= 0")


MEASURED_RESIZE = ResizeCosts()
