"""Bars: of a device what each job has and uses of it, of a job what was foretold and what is so."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from presage.schedulers.live.ui.figures import ON_NODE, percent, share, size, state_of
from presage.schedulers.v1 import cluster_pb2 as pb

FULL_DEVICE_MILLI = 1000
COLOURS = 8
_SLIVER = 3.0  # % of a bar: of a job that has its devices' memory and nothing of their compute


class Segment(NamedTuple):
    """What one job has of a device, or all that are not listed; lengths in % of the bar.

    Attributes
    ----------
    job_id : str
        "" for those that are not listed.
    used : float
        Of the bar, from ``at`` on; may be more than ``width``.
    peak : float
        As ``used``; 0 where there is none.
    """

    job_id: str
    colour: int
    state: str
    at: float
    width: float
    used: float
    peak: float
    said: str


class DeviceBar(NamedTuple):
    """A device, its compute and its memory shared out."""

    number: int
    kind: str
    compute: list[Segment]
    memory: list[Segment]
    given_milli: int
    used_milli: float
    given_bytes: int
    used_bytes: int
    memory_bytes: int


class Gauge(NamedTuple):
    """What is so, beside what was foretold; in % of the gauge.

    Attributes
    ----------
    more : float
        What is still to come, behind ``value``.
    mark, bound, peak : float or None
        The median that was foretold, its bound, and the most there was.
    """

    value: float
    more: float = 0.0
    mark: float | None = None
    bound: float | None = None
    peak: float | None = None
    over: bool = False


def colour_of(job_id: str) -> int:
    """One of a few, always the same of a job."""
    return zlib.crc32(job_id.encode()) % COLOURS


def device_bars(node: pb.NodeStatus, jobs: Iterable[pb.JobStatus]) -> list[DeviceBar]:
    """The devices of a node; ``jobs`` are those on it."""
    there: list[list[tuple[pb.JobStatus, pb.Allocation]]] = [[] for _ in node.devices]
    for row in jobs:
        for allocation in row.allocations if row.phase in ON_NODE else ():
            if allocation.device < len(there):
                there[allocation.device].append((row, allocation))
    return [
        _device(number, device, rows)
        for number, (device, rows) in enumerate(zip(node.devices, there, strict=True))
    ]


def _device(
    number: int, device: pb.DeviceStatus, rows: Sequence[tuple[pb.JobStatus, pb.Allocation]]
) -> DeviceBar:
    at_work = [(row, allocation) for row, allocation in rows if row.phase != pb.PAUSED]
    listed_milli = sum(allocation.compute_milli for _, allocation in rows)
    listed_bytes = sum(allocation.memory_bytes for _, allocation in rows)
    # What is left is so of all jobs, also of those that are not listed.
    taken_milli = FULL_DEVICE_MILLI - device.left_compute_milli
    taken_bytes = device.memory_bytes - device.left_memory_bytes
    more = len(set(device.job_ids) - {row.job.job_id for row, _ in rows})
    paused_milli = listed_milli - sum(allocation.compute_milli for _, allocation in at_work)
    more_compute = _rest(more, taken_milli - listed_milli, share)
    more_memory = _rest(more, taken_bytes - listed_bytes, size)
    return DeviceBar(
        number,
        device.kind,
        _segments(rows, FULL_DEVICE_MILLI, _compute, more_compute),
        _segments(rows, device.memory_bytes, _memory, more_memory),
        max(0, taken_milli - paused_milli),
        sum(row.usage_milli for row, _ in at_work),
        max(0, taken_bytes),
        sum(row.memory_bytes // len(row.allocations) for row, _ in rows),
        device.memory_bytes,
    )


class _Amounts(NamedTuple):
    has: float
    uses: float
    peak: float
    said: str


def _compute(row: pb.JobStatus, allocation: pb.Allocation) -> _Amounts:
    if row.phase == pb.PAUSED:
        said = f"paused, goes on with {share(allocation.compute_milli)}"
        return _Amounts(_SLIVER * FULL_DEVICE_MILLI / 100, 0.0, 0.0, said)
    said = f"{share(allocation.compute_milli)} given, {percent(row.usage_milli)} used"
    return _Amounts(allocation.compute_milli, row.usage_milli, 0.0, said)


def _memory(row: pb.JobStatus, allocation: pb.Allocation) -> _Amounts:
    now, peak = (n // len(row.allocations) for n in (row.memory_bytes, row.peak_memory_bytes))
    said = f"{size(allocation.memory_bytes)} given, {size(now)} used, peak {size(peak)}"
    return _Amounts(allocation.memory_bytes, now, peak, said)


def _rest(jobs: int, has: int, said: Callable[[float], str]) -> _Amounts | None:
    """What jobs have that are not listed; None where there are none."""
    if not jobs or has <= 0:
        return None
    which = "a job that is" if jobs == 1 else f"{jobs} jobs that are"
    return _Amounts(has, 0.0, 0.0, f"{said(has)} given to {which} not listed")


def _segments(
    rows: Sequence[tuple[pb.JobStatus, pb.Allocation]],
    whole: float,
    amounts: Callable[[pb.JobStatus, pb.Allocation], _Amounts],
    rest: _Amounts | None,
) -> list[Segment]:
    of_each = [amounts(row, allocation) for row, allocation in rows]
    has = sum(one.has for one in of_each) + (rest.has if rest else 0)
    # More than the whole is given out for moments, and where a policy overcommits.
    scale = 100 / max(whole, has, 1)
    found, at = [], 0.0
    for (row, _), one in zip(rows, of_each, strict=True):
        job_id = row.job.job_id
        lengths = (round(scale * n, 2) for n in (one.has, one.uses, one.peak))
        width, used, peak = lengths
        said = f"{job_id}: {one.said}"
        found.append(
            Segment(job_id, colour_of(job_id), state_of(row), round(at, 2), width, used, peak, said)
        )
        at += width
    if rest is not None:
        width = round(scale * rest.has, 2)
        found.append(Segment("", 0, "unlisted", round(at, 2), width, 0.0, 0.0, rest.said))
    return found


def compute_gauge(row: pb.JobStatus, told: pb.Told | None) -> Gauge:
    """Of a device: used, given and foretold."""
    given = row.allocations[0].compute_milli if row.allocations else 0
    mark = told.compute_milli / 10 if told is not None and told.foretold else None
    over = mark is not None and row.usage_milli / 10 > mark + 5
    return Gauge(min(100.0, row.usage_milli / 10), mark=mark, bound=given / 10, over=over)


def memory_gauge(row: pb.JobStatus) -> Gauge:
    """Of all its devices: used now and at most, and the bound that was foretold and given."""
    given = sum(allocation.memory_bytes for allocation in row.allocations)
    whole = max(given / 0.9, row.peak_memory_bytes, row.memory_bytes, 1)
    return Gauge(
        100 * row.memory_bytes / whole,
        bound=100 * given / whole if given else None,
        peak=100 * row.peak_memory_bytes / whole,
        over=bool(given) and row.peak_memory_bytes > given,
    )


def time_gauge(row: pb.JobStatus, told: pb.Told | None) -> Gauge | None:
    """Elapsed and remaining, against what was foretold and promised; None where nothing was.

    Of a job that is only placed nobody has said yet what remains.
    """
    if told is None or not told.foretold or row.phase == pb.PLACED:
        return None
    if not (math.isfinite(row.remaining_s) and math.isfinite(told.promised_s)):
        return None
    ends_s = row.elapsed_s + row.remaining_s
    whole_s = max(1.05 * ends_s, 1.05 * told.promised_s, 1e-9)
    return Gauge(
        100 * row.elapsed_s / whole_s,
        more=100 * row.remaining_s / whole_s,
        mark=100 * told.runtime_s / whole_s,
        bound=100 * told.promised_s / whole_s,
        over=ends_s > told.promised_s,
    )
