"""Failure and repair events of nodes and of single devices."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from presage.errors import ConfigError
from presage.features.hazard.outage import Outage, merge_outages


@dataclass(frozen=True, slots=True)
class Fault:
    """Failure or repair of a node or of one of its devices.

    Attributes
    ----------
    device : int or None
        Number of the device in the cluster; None for the whole node.
    """

    at_s: float
    node: int
    repaired: bool
    device: int | None = None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.at_s) and self.at_s >= 0):
            raise ConfigError(
                f"a fault of node {self.node} at {self.at_s} s, must be a finite number >= 0; "
                "count seconds from the start of the trace"
            )

    @property
    def unit(self) -> tuple[int, int]:
        """Sort key of what fails: a node precedes its devices."""
        return self.node, -1 if self.device is None else self.device


def outages_to_faults(outages: Iterable[Outage]) -> tuple[Fault, ...]:
    """Return failures and repairs by time.

    At equal times failures come first, so that an outage may have zero length.
    """
    found: list[Fault] = []
    for node, from_s, until_s, device in merge_outages(outages):
        found.append(Fault(from_s, node, False, device))
        if until_s < math.inf:
            found.append(Fault(until_s, node, True, device))
    return tuple(sorted(found, key=lambda fault: (fault.at_s, fault.repaired, fault.unit)))


def faults_to_outages(faults: Iterable[Fault]) -> list[Outage]:
    """Return the outages of faults that are sorted by time and alternate for each unit."""
    down: dict[tuple[int, int], Fault] = {}
    found = []
    for fault in faults:
        if fault.repaired:
            begun = down.pop(fault.unit)
            found.append(Outage(fault.node, begun.at_s, fault.at_s, fault.device))
        else:
            down[fault.unit] = fault
    return found + [
        Outage(fault.node, fault.at_s, math.inf, fault.device) for fault in down.values()
    ]
