"""Bars of a timeline: adjacent devices that a job holds at the same time form one bar."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from presage.schedulers.core.allocation import FULL_DEVICE_MILLI
from presage.schedulers.simulator.results.timeline import Intervals
from presage.system.arrays import Array, Int32s


@dataclass(frozen=True, slots=True)
class Bars:
    """Bars as arrays of shape (bars,), sorted by start time.

    Attributes
    ----------
    device, devices : ndarray of int
        First device, and number of devices.
    share_milli, above_milli : ndarray of int
        Height of a bar, and free height above it, in thousandths of a device's row.
    """

    job: Int32s
    start_s: Array
    end_s: Array
    device: Int32s
    devices: Int32s
    share_milli: Int32s
    above_milli: Int32s
    ended_by: Int32s
    paused: np.ndarray[tuple[int], np.dtype[np.bool_]]


def bars_of(held: Intervals) -> Bars:
    """Return the smallest set of bars that shows all intervals."""
    above = _above(held)
    apart = np.ones(len(held.job), dtype=bool)
    apart[1:] = held.device[1:] != held.device[:-1] + 1
    for column in (held.job, held.start_s, held.compute_milli, above):
        apart[1:] |= column[1:] != column[:-1]
    first = np.flatnonzero(apart)
    devices = np.diff(first, append=len(held.job))
    order = np.argsort(held.start_s[first], kind="stable")
    first = first[order]
    return Bars(
        job=held.job[first],
        start_s=held.start_s[first],
        end_s=held.end_s[first],
        device=held.device[first],
        devices=devices[order].astype(np.int32),
        share_milli=held.compute_milli[first],
        above_milli=above[first],
        ended_by=held.ended_by[first],
        paused=held.paused[first],
    )


def _above(held: Intervals) -> Int32s:
    """Return the vertical position of each interval on a shared device: the first free one.

    Bars overlap where free height is fragmented, and where a paused job lies under another one.
    """
    above = np.zeros(len(held.job), dtype=np.int32)
    shared = np.flatnonzero(held.compute_milli < FULL_DEVICE_MILLI)
    shared = shared[np.argsort(held.start_s[shared], kind="stable")]
    there: dict[int, list[tuple[float, int, int]]] = {}  # end, top, bottom
    columns = (held.device, held.start_s, held.end_s, held.compute_milli)
    rows = zip(*(column[shared].tolist() for column in columns), strict=True)
    for place, (device, start_s, end_s, share) in zip(shared.tolist(), rows, strict=True):
        lasting = [one for one in there.get(device, ()) if one[0] > start_s]
        top = 0
        for _, taken, bottom in sorted(lasting, key=lambda one: one[1]):
            if taken - top >= share:
                break
            top = max(top, bottom)
        above[place] = top = top if top + share <= FULL_DEVICE_MILLI else 0
        there[device] = [*lasting, (end_s, top, top + share)]
    return above
