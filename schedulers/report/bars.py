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


def make_bars(intervals: Intervals) -> Bars:
    """Return the smallest set of bars that shows all intervals."""
    above = _free_height_above(intervals)
    is_first = np.ones(len(intervals.job), dtype=bool)
    is_first[1:] = intervals.device[1:] != intervals.device[:-1] + 1
    for column in (intervals.job, intervals.start_s, intervals.compute_milli, above):
        is_first[1:] |= column[1:] != column[:-1]
    first = np.flatnonzero(is_first)
    devices = np.diff(first, append=len(intervals.job))
    order = np.argsort(intervals.start_s[first], kind="stable")
    first = first[order]
    return Bars(
        job=intervals.job[first],
        start_s=intervals.start_s[first],
        end_s=intervals.end_s[first],
        device=intervals.device[first],
        devices=devices[order].astype(np.int32),
        share_milli=intervals.compute_milli[first],
        above_milli=above[first],
        ended_by=intervals.ended_by[first],
        paused=intervals.paused[first],
    )


def _free_height_above(intervals: Intervals) -> Int32s:
    """Return the vertical position of each interval on a shared device: the first free one.

    Bars overlap where free height is fragmented, and where a paused job lies under another one.
    """
    above = np.zeros(len(intervals.job), dtype=np.int32)
    shared = np.flatnonzero(intervals.compute_milli < FULL_DEVICE_MILLI)
    shared = shared[np.argsort(intervals.start_s[shared], kind="stable")]
    placed: dict[int, list[tuple[float, int, int]]] = {}  # by device: end, top, bottom
    columns = (intervals.device, intervals.start_s, intervals.end_s, intervals.compute_milli)
    rows = zip(*(column[shared].tolist() for column in columns), strict=True)
    for index, (device, start_s, end_s, share) in zip(shared.tolist(), rows, strict=True):
        overlapping = [bar for bar in placed.get(device, ()) if bar[0] > start_s]
        top = 0
        for _, next_top, bottom in sorted(overlapping, key=lambda bar: bar[1]):
            if next_top - top >= share:
                break
            top = max(top, bottom)
        above[index] = top = top if top + share <= FULL_DEVICE_MILLI else 0
        placed[device] = [*overlapping, (end_s, top, top + share)]
    return above
