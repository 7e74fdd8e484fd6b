"""Status of a submitted job: its phase, its allocations and its counters."""

from __future__ import annotations

import math
from enum import StrEnum
from typing import NamedTuple

from presage.schedulers.core.allocation import Allocation


class Phase(StrEnum):
    """Phase of a submitted job; every job is in exactly one."""

    PENDING = "pending"
    RESERVED = "reserved"  # waits, and holds its reserved devices until the reservation expires
    RUNNING = "running"
    PAUSED = "paused"  # holds its memory, but none of its compute
    FINISHED = "finished"
    FAILED = "failed"
    REJECTED = "rejected"


WAITING = frozenset({Phase.PENDING, Phase.RESERVED})
ENDED = frozenset({Phase.FINISHED, Phase.FAILED, Phase.REJECTED})


class JobStatus(NamedTuple):
    """Status of a job from one change to the next.

    Attributes
    ----------
    since_s : float
        Time of the change that led to this status.
    allocations : tuple of Allocation
        One for each member of the gang; a reserved job may have fewer, a waiting job has none.
    attained_s : float
        Device-seconds that the job ran before ``since_s``.
    starts, overflows : int
        Number of starts, and of times that the job ran out of device memory.
    waited_s : float
        Seconds that the job was pending or reserved before ``since_s``.
    until_s : float
        Time at which the reservation expires; infinite if there is none.
    rollbacks : int
        Number of reservations that ended without a start.
    rolled_back_s : float
        Time at which the last of them ended; 0 if there was none.
    first_start_s : float
        Time of the first start; infinite if the job has never run.
    attained_at_start_s : float
        Value of ``attained_s`` at the last start: that work is checkpointed, or lost already.
    previous_devices : tuple of int
        Devices that a waiting job held last.
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
    previous_devices: tuple[int, ...] = ()
    attained_at_start_s: float = 0.0

    def seconds_since_start(self, now_s: float) -> float:
        """Return the run time since the last start of a job that holds devices, in seconds.

        It is the work that a preemption costs at most, if the job has saved no checkpoint since.
        """
        return (self.attained_at(now_s) - self.attained_at_start_s) / len(self.allocations)

    @property
    def held_milli(self) -> int:
        """Compute that the job holds, in thousandths of a device."""
        return sum([allocation.compute_milli for allocation in self.allocations])

    def attained_at(self, now_s: float) -> float:
        """Return the device-seconds that the job ran before ``now_s``."""
        if self.phase is not Phase.RUNNING:
            return self.attained_s
        return self.attained_s + len(self.allocations) * (now_s - self.since_s)
