"""Node faults: failure and repair events, and the outages between them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from presage.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Fault:
    """Failure or repair of a node."""

    at_s: float
    node: int
    repaired: bool

    def __post_init__(self) -> None:
        if not (math.isfinite(self.at_s) and self.at_s >= 0):
            raise ConfigError(
                f"a fault of node {self.node} at {self.at_s} s, must be a finite number >= 0; "
                "count seconds from the start of the trace"
            )


class Outage(NamedTuple):
    """Time span in which a node is down; infinite if it is not repaired."""

    node: int
    from_s: float
    until_s: float


def merge_outages(outages: Iterable[Outage]) -> list[Outage]:
    """Merge overlapping and touching outages of a node, and sort by node and time."""
    found: list[Outage] = []
    for one in sorted(outages):
        if found and found[-1].node == one.node and one.from_s <= found[-1].until_s:
            found[-1] = found[-1]._replace(until_s=max(found[-1].until_s, one.until_s))
        else:
            found.append(one)
    return found


def outages_to_faults(outages: Iterable[Outage]) -> tuple[Fault, ...]:
    """Return failures and repairs by time.

    At equal times failures come first, so that an outage may have zero length.
    """
    found: list[Fault] = []
    for node, from_s, until_s in merge_outages(outages):
        found.append(Fault(from_s, node, repaired=False))
        if until_s < math.inf:
            found.append(Fault(until_s, node, repaired=True))
    return tuple(sorted(found, key=lambda fault: (fault.at_s, fault.repaired, fault.node)))


def faults_to_outages(faults: Iterable[Fault]) -> list[Outage]:
    """Return the outages of faults that are sorted by time and alternate for each node."""
    down: dict[int, float] = {}
    found = []
    for fault in faults:
        if fault.repaired:
            found.append(Outage(fault.node, down.pop(fault.node), fault.at_s))
        else:
            down[fault.node] = fault.at_s
    return found + [Outage(node, from_s, math.inf) for node, from_s in down.items()]
