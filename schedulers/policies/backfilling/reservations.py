"""Reservations of devices for waiting jobs: which devices are idle at what time in the future."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable

from presage.schedulers.core.allocation import Allocation
from presage.schedulers.core.capacity.consolidation import place_consolidated
from presage.schedulers.core.capacity.idle_devices import IdleDevices
from presage.schedulers.core.capacity.resource_requests import gang_size
from presage.schedulers.core.cluster import Cluster
from presage.schedulers.core.job import Job

Duration = Callable[[tuple[Allocation, ...]], float]
# Placements are repeated for the longer duration on the devices found; kinds differ in speed.
_MOST_PLACEMENTS = 3


class Reservations:
    """Idle devices over time, as sets of bits that hold from one time to the next.

    Parameters
    ----------
    cluster : Cluster
    now_s : float
    idle : IdleDevices
        Devices that are idle now.
    releases : iterable of (float, allocations)
        When running jobs give back their devices; infinity for never.
    """

    def __init__(
        self,
        cluster: Cluster,
        now_s: float,
        idle: IdleDevices,
        releases: Iterable[tuple[float, tuple[Allocation, ...]]],
    ) -> None:
        self._cluster = cluster
        self._times_s = [now_s]
        self._idle = [idle.bits()]
        known = [(at_s, _bits(held)) for at_s, held in releases if at_s < math.inf]
        for at_s, devices in sorted(known):
            if at_s > self._times_s[-1]:
                self._times_s.append(at_s)
                self._idle.append(self._idle[-1])
            self._idle[-1] |= devices

    def earliest(
        self, job: Job, duration_s: Duration
    ) -> tuple[float, float, tuple[Allocation, ...]] | None:
        """Return when a job can start and end on which devices; None if that is not known.

        Parameters
        ----------
        job : Job
        duration_s : callable
            Predicted time of the job on allocations.
        """
        gang = gang_size(job, self._cluster)
        for first, begin_s in enumerate(self._times_s):
            if self._idle[first].bit_count() < gang:
                continue
            found = self._place(job, first, duration_s)
            if found is not None:
                return begin_s, begin_s + duration_s(found), found
        return None

    def reserve(self, begin_s: float, end_s: float, allocations: tuple[Allocation, ...]) -> None:
        """Reserve devices from one time to another, both at or after now.

        Also of a job that is predicted to take no time, so that no other one starts there with it.
        """
        devices = _bits(allocations)
        begin = self._cut(begin_s)
        end = self._cut(max(end_s, math.nextafter(begin_s, math.inf)))
        for i in range(begin, end):
            self._idle[i] &= ~devices

    def _place(self, job: Job, first: int, duration_s: Duration) -> tuple[Allocation, ...] | None:
        """Return devices that are idle from a time on for as long as the job runs there."""
        longest_s = 0.0
        for _ in range(_MOST_PLACEMENTS):
            bits = self._idle_until(first, self._times_s[first] + longest_s)
            idle = IdleDevices.of_bits(self._cluster, bits)
            found = place_consolidated(job, self._cluster, idle)
            if found is None:
                return None
            needed_s = duration_s(found)
            if needed_s <= longest_s:
                return found
            longest_s = needed_s
            if not _bits(found) & ~self._idle_until(first, self._times_s[first] + longest_s):
                return found
        return None

    def _idle_until(self, first: int, end_s: float) -> int:
        """Return the devices that are idle from a position in the times until ``end_s``."""
        bits = self._idle[first]
        for i in range(first + 1, len(self._times_s)):
            if self._times_s[i] >= end_s:
                break
            bits &= self._idle[i]
        return bits

    def _cut(self, at_s: float) -> int:
        """Return the position of a time, which is added if it is new; the end for infinity."""
        if at_s == math.inf:
            return len(self._times_s)
        i = bisect_left(self._times_s, at_s)
        if i == len(self._times_s) or self._times_s[i] != at_s:
            self._times_s.insert(i, at_s)
            self._idle.insert(i, self._idle[i - 1])
        return i


def _bits(allocations: Iterable[Allocation]) -> int:
    bits = 0
    for allocation in allocations:
        bits |= 1 << allocation.device
    return bits
