"""Nodes fail and are repaired: events, and the outages between them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from presage.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Fault:
    """A node fails, or is repaired."""

    at_s: float
    node: int
    repaired: bool

    def __post_init__(self) -> None:
        if not (math.isfinite(self.at_s) and self.at_s >= 0):
            raise ConfigError(
                f"a fault of node {self.node} at {self.at_s} s, must be a finite number >= 0; "
                "count seconds from the trace's beginning"
            )


class Outage(NamedTuple):
    """A node is down; infinitely long if it is not repaired."""

    node: int
    from_s: float
    until_s: float


def merged(outages: Iterable[Outage]) -> list[Outage]:
    """By node and time, where those of a node that overlap or touch are one."""
    found: list[Outage] = []
    for one in sorted(outages):
        if found and found[-1].node == one.node and one.from_s <= found[-1].until_s:
            found[-1] = found[-1]._replace(until_s=max(found[-1].until_s, one.until_s))
        else:
            found.append(one)
    return found


def faults_of(outages: Iterable[Outage]) -> tuple[Fault, ...]:
    """Failures and repairs by time; of one moment failures first, so that one may last no time."""
    found: list[Fault] = []
    for node, from_s, until_s in merged(outages):
        found.append(Fault(from_s, node, repaired=False))
        if until_s < math.inf:
            found.append(Fault(until_s, node, repaired=True))
    return tuple(sorted(found, key=lambda fault: (fault.at_s, fault.repaired, fault.node)))


def outages_of(faults: Iterable[Fault]) -> list[Outage]:
    """Between failures and repairs that are by time, each node's by turns."""
    down: dict[int, float] = {}
    found = []
    for fault in faults:
        if fault.repaired:
            found.append(Outage(fault.node, down.pop(fault.node), fault.at_s))
        else:
            down[fault.node] = fault.at_s
    return found + [Outage(node, from_s, math.inf) for node, from_s in down.items()]
