"""How a job stands: what it holds, what it has had."""

from __future__ import annotations

import math
from enum import StrEnum
from typing import NamedTuple

from presage.schedulers.core.allocation import Allocation


class Phase(StrEnum):
    """The one state that a submitted job is in."""

    PENDING = "pending"
    RESERVED = "reserved"  # waits, and keeps what it reserved from others until that expires
    RUNNING = "running"
    PAUSED = "paused"  # keeps its memory, and none of its compute
    FINISHED = "finished"
    FAILED = "failed"
    REJECTED = "rejected"


WAITING = frozenset({Phase.PENDING, Phase.RESERVED})
ENDED = frozenset({Phase.FINISHED, Phase.FAILED, Phase.REJECTED})


class JobStatus(NamedTuple):
    """Of a job, from one change to the next.

    Attributes
    ----------
    since_s : float
        When it came to stand so.
    allocations : tuple of Grant
        One a member, perhaps of only some if it is reserved; none of a job that holds nothing.
    attained_s : float
        Device-seconds that it ran before ``since_s``.
    starts, overflows : int
        How often it was started, and ran out of a device's memory.
    waited_s : float
        Seconds that it was pending or reserved before ``since_s``.
    until_s : float
        When its reservation expires; infinite if it has none.
    rollbacks : int
        How many reservations it had that came to nothing.
    rolled_back_s : float
        When the last of them did; 0 if none.
    first_start_s : float
        When it was first started; infinite if it never was.
    kept_s : float
        Of ``attained_s``, what it had when it was last started: that is in its checkpoint, or lost.
    was_on : tuple of int
        Devices that it last held, of a job that waits.
    """

    phase: Phase
    since_s: float
    allocations: tuple[Allocation, ...] = ()
    attained_s: float = 0.0
    starts: int = 0
    overflows: int = 0
    waited_s: float = 0.0
    until_s: float = math.inf
    rollbacks: int = 0
    rolled_back_s: float = 0.0
    first_start_s: float = math.inf
    was_on: tuple[int, ...] = ()
    kept_s: float = 0.0

    def at_stake_s(self, now_s: float) -> float:
        """Seconds that it ran since it was last started: what it has to lose, if it saves nothing.

        Of a job that holds devices.
        """
        return (self.attained_at(now_s) - self.kept_s) / len(self.allocations)

    def attained_at(self, now_s: float) -> float:
        """Device-seconds that it ran before ``now_s``."""
        if self.phase is not Phase.RUNNING:
            return self.attained_s
        return self.attained_s + len(self.allocations) * (now_s - self.since_s)
