"""Outages of devices up to now, by an id of the device that outlasts its number and its node.

An outage of a node is an outage of each of its devices. The simulator names devices by
:meth:`presage.schedulers.core.cluster.Cluster.name_of`; a live cluster by their serial ids, so the
history follows a device to another node or name, and a device that replaces it has none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple


class DeviceOutage(NamedTuple):
    """Time span in which a device is down; ``until_s`` is infinite while it lasts."""

    from_s: float
    until_s: float


class OutageEvent(NamedTuple):
    """Begin or end of an outage, or a symptom, which counts as the end of one."""

    device_id: str
    at_s: float
    is_repair: bool


class OutageHistory:
    """Outages of each device since ``observed_from_s``, in order of their start.

    Times of a device never decrease: after a step back of the clock, an event counts as
    simultaneous with the event before it.

    Attributes
    ----------
    observed_from_s : float
        Start of the history; negative if it is older than the trace.
    events : list of OutageEvent
        All events, in the order in which they were recorded. Readers may remember their position.
    """

    __slots__ = ("_down_since", "_ended_s", "_outages", "events", "observed_from_s")

    def __init__(self, observed_from_s: float = 0.0) -> None:
        self.observed_from_s = observed_from_s
        self.events: list[OutageEvent] = []
        self._outages: dict[str, list[DeviceOutage]] = {}
        self._down_since: dict[str, float] = {}
        self._ended_s = 0.0  # lengths of the outages that are over

    @property
    def outages(self) -> Mapping[str, Sequence[DeviceOutage]]:
        """Outages by device id; devices that never failed are missing."""
        return MappingProxyType(self._outages)

    def is_down(self, device_id: str) -> bool:
        """Return whether a device is down."""
        return device_id in self._down_since

    def record_failure(self, device_id: str, now_s: float) -> None:
        """Begin an outage; no effect on a device that is down."""
        if self.is_down(device_id):
            return
        found = self._outages.setdefault(device_id, [])
        start_s = max(now_s, found[-1].until_s) if found else now_s
        found.append(DeviceOutage(start_s, math.inf))
        self._down_since[device_id] = start_s
        self.events.append(OutageEvent(device_id, start_s, False))

    def record_repair(self, device_id: str, now_s: float) -> None:
        """End an outage; no effect on a device that is up."""
        if not self.is_down(device_id):
            return
        found = self._outages[device_id]
        end_s = max(now_s, found[-1].from_s)
        found[-1] = DeviceOutage(found[-1].from_s, end_s)
        self._ended_s += end_s - self._down_since.pop(device_id)
        self.events.append(OutageEvent(device_id, end_s, True))

    def record_symptom(self, device_id: str, now_s: float) -> None:
        """Note evidence that a device will fail; no effect on a device that is down.

        It adds as much to the hazard of the device as a repair does, and is neither an outage nor a
        failure.
        """
        if self.is_down(device_id):
            return
        found = self._outages.get(device_id)
        at_s = max(now_s, found[-1].until_s) if found else now_s
        self.events.append(OutageEvent(device_id, at_s, True))

    def down_s(self, now_s: float) -> float:
        """Return the device-seconds of all outages until ``now_s``, the time of the last event."""
        return self._ended_s + sum(max(0.0, now_s - one) for one in self._down_since.values())
