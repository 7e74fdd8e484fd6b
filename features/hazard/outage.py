"""Outages of nodes and of single devices."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Outage(NamedTuple):
    """Time span in which a node or one of its devices is down; infinite if it is not repaired.

    Attributes
    ----------
    node : int
    from_s, until_s : float
        Seconds since the start of the trace; negative before it.
    device : int or None
        Number of the device in the cluster; None if the whole node is down.
    """

    node: int
    from_s: float
    until_s: float
    device: int | None = None

    @property
    def unit(self) -> tuple[int, int]:
        """Sort key of what is down: a node precedes its devices."""
        return self.node, -1 if self.device is None else self.device


def merge_outages(outages: Iterable[Outage]) -> list[Outage]:
    """Merge overlapping and touching outages of a node or device; sort by unit and time.

    Outages of a node and of its devices are kept apart.
    """
    found: list[Outage] = []
    for one in sorted(outages, key=lambda one: (*one.unit, one.from_s, one.until_s)):
        if found and found[-1].unit == one.unit and one.from_s <= found[-1].until_s:
            found[-1] = found[-1]._replace(until_s=max(found[-1].until_s, one.until_s))
        else:
            found.append(one)
    return found
