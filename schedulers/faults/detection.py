"""Detection of failures: when a scheduler learns that a node or device is down."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from presage.errors import ConfigError
from presage.schedulers.faults.fault import Fault


@dataclass(frozen=True, slots=True)
class Detection:
    """Times from a failure until a scheduler reacts to it; its jobs stop at once.

    With the leases of a live cluster's agents, jobs of a lost node start elsewhere only after they
    have certainly ended there. A node or device that is up again before that is repaired and known
    to have failed at the same time.

    Attributes
    ----------
    suspect_s : float
        Time after which devices without a job get none. A job that starts on them earlier is stuck.
    lost_s : float
        Time after which the jobs are pending again.
    """

    suspect_s: float
    lost_s: float

    def __post_init__(self) -> None:
        if not 0 <= self.suspect_s <= self.lost_s < math.inf:
            raise ConfigError(
                f"suspect_s={self.suspect_s} and lost_s={self.lost_s}, must be finite, at least 0, "
                "and suspect_s at most lost_s"
            )


class FaultStage(IntEnum):
    """Stage of an outage; stages of one moment take place in this order."""

    STOPPED = 0  # the jobs stop; the scheduler does not know it
    SUSPECTED = 1  # known, unless a job is there
    LOST = 2
    REPAIRED = 3


class FaultEvent(NamedTuple):
    """Stage of the outage of a node or device."""

    at_s: float
    stage: FaultStage
    fault: Fault


def fault_events(faults: Sequence[Fault], detection: Detection | None) -> list[FaultEvent]:
    """Return the stages of faults that are sorted by time; without detection, failures are known.

    Failures and repairs alternate for each node and device.
    """
    if detection is None:
        return [
            FaultEvent(one.at_s, FaultStage.REPAIRED if one.repaired else FaultStage.LOST, one)
            for one in faults
        ]
    repaired_s: dict[tuple[int, int], float] = {}
    found: list[FaultEvent] = []
    for fault in reversed(faults):
        if fault.repaired:
            repaired_s[fault.unit] = fault.at_s
            found.append(FaultEvent(fault.at_s, FaultStage.REPAIRED, fault))
            continue
        until_s = repaired_s.pop(fault.unit, math.inf)
        found.append(FaultEvent(fault.at_s, FaultStage.STOPPED, fault))
        for delay_s, stage in (
            (detection.suspect_s, FaultStage.SUSPECTED),
            (detection.lost_s, FaultStage.LOST),
        ):
            found.append(FaultEvent(min(fault.at_s + delay_s, until_s), stage, fault))
    return sorted(found, key=lambda event: (event.at_s, event.stage, event.fault.unit))
