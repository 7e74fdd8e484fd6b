"""Timeline of an event log as arrays: allocations, pending jobs and node outages over time."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from presage.schedulers.core.allocation import FULL_DEVICE_MILLI, Allocation
from presage.schedulers.core.cluster import Cluster
from presage.schedulers.simulator.results.event_log import Entry
from presage.system.arrays import Array, Int32s

Unit = tuple[str, str | None]  # names of a node, and of one of its devices or None

# Events that end an interval; "log" stands for a log that ends before the job does.
ENDS = (
    "finish", "preempt", "resize", "migrate", "pause", "resume", "overflow", "lost", "log",
    "shrink",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Intervals:
    """Intervals of constant allocation of one device to one job; arrays of shape (intervals,).

    Sorted by end time; the devices of a gang are adjacent, by number.

    Attributes
    ----------
    job : ndarray of int
        Index in ``Timeline.job_ids``.
    compute_milli : ndarray of int
        Allocated compute in milli-devices; a paused job uses none of it.
    ended_by : ndarray of int
        Index in ``ENDS``.
    """

    job: Int32s
    device: Int32s
    start_s: Array
    end_s: Array
    compute_milli: Int32s
    ended_by: Int32s
    paused: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Spans:
    """Time spans of pending jobs or of nodes or devices that are down, by their index."""

    index: Int32s
    start_s: Array
    end_s: Array


@dataclass(frozen=True, slots=True)
class Steps:
    """Step function of time: ``value[i]`` from ``at_s[i]`` on, and 0 before the first step."""

    at_s: Array
    value: Array

    def integral(self, end_s: Array | float) -> Array:
        """Return the integral from the start to each of ``end_s``."""
        areas = np.concatenate([[0.0, 0.0], np.cumsum(self.value[:-1] * np.diff(self.at_s))])
        at_s = np.concatenate([[0.0], self.at_s])
        value = np.concatenate([[0.0], self.value])
        step = np.searchsorted(self.at_s, end_s, side="right")
        integral: Array = areas[step] + value[step] * (end_s - at_s[step])
        return integral

    def resample(self, start_s: float, end_s: float, max_steps: int) -> Steps:
        """Return at most ``max_steps`` steps: the same steps, or means over equal time spans."""
        if len(self.at_s) <= max_steps or not end_s > start_s:
            return self
        edges = np.linspace(start_s, end_s, max_steps + 1)
        return Steps(edges[:-1], np.diff(self.integral(edges)) / np.diff(edges))


@dataclass(frozen=True, slots=True)
class Timeline:
    """Allocations, pending jobs and outages of a cluster, read from an event log.

    Attributes
    ----------
    job_ids : tuple of str
        Ids by job index, in the order of submission.
    intervals : Intervals
        Allocations of jobs, without intervals of zero length.
    pending : Spans
        Spans in which jobs were pending.
    outages : Spans
        Spans in which nodes were down.
    device_outages : Spans
        Spans in which single devices were down; their nodes may have been down as well.
    end_s : float
        Time of the last entry, or 0.
    """

    cluster: Cluster
    job_ids: tuple[str, ...]
    intervals: Intervals
    pending: Spans
    outages: Spans
    device_outages: Spans
    end_s: float

    def busy_devices(self) -> Steps:
        """Return the number of devices with a job, paused or not."""
        intervals = self.intervals
        return _steps(*_union(intervals.device, intervals.start_s, intervals.end_s))

    def allocated_compute(self) -> Steps:
        """Return the allocated compute in devices; two half devices count as one."""
        intervals = self.intervals
        share = np.where(intervals.paused, 0.0, intervals.compute_milli / FULL_DEVICE_MILLI)
        return _steps(
            np.concatenate([intervals.start_s, intervals.end_s]), np.concatenate([share, -share])
        )

    def pending_jobs(self) -> Steps:
        """Return the number of pending jobs."""
        pending = self.pending
        ones = np.ones(len(pending.index))
        return _steps(
            np.concatenate([pending.start_s, pending.end_s]), np.concatenate([ones, -ones])
        )

    def devices_up(self) -> Steps:
        """Return the number of devices that are not down, from 0 s on."""
        if len(self.device_outages.index):
            at_s, change = _union(*self._down_by_device())
            total = float(self.cluster.devices)
            return _steps(np.concatenate([[0.0], at_s]), np.concatenate([[total], -change]))
        outages = self.outages
        sizes = np.array([node.devices for node in self.cluster.nodes], dtype=float)[outages.index]
        return _steps(
            np.concatenate([[0.0], outages.start_s, outages.end_s]),
            np.concatenate([[float(self.cluster.devices)], -sizes, sizes]),
        )

    def _down_by_device(self) -> tuple[Int32s, Array, Array]:
        """Return devices, starts and ends of all outages, those of nodes for each device."""
        nodes, single = self.outages, self.device_outages
        firsts = np.array(self.cluster.first_device)[nodes.index]
        sizes = np.array([node.devices for node in self.cluster.nodes])[nodes.index]
        number = np.arange(int(sizes.sum())) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        device = np.concatenate([np.repeat(firsts, sizes) + number, single.index])
        return (
            device.astype(np.int32),
            np.concatenate([np.repeat(nodes.start_s, sizes), single.start_s]),
            np.concatenate([np.repeat(nodes.end_s, sizes), single.end_s]),
        )


def make_timeline(entries: Iterable[Entry], cluster: Cluster, ended: Collection[str]) -> Timeline:
    """Return the timeline of a log up to its last entry.

    Parameters
    ----------
    ended : collection of str
        Ids of all ended jobs: the log has no entry for the end of every failed or rejected job.
    """
    reader = _LogReader()
    for now_s, event, job_id, details in entries:
        reader.now_s = now_s
        reader.read(event, job_id, details)
    for job_id in tuple(reader.running):
        reader.release(job_id, "log")
    for job_id in reader.pending_since.keys() - ended:
        reader.pending.append((reader.number[job_id], reader.pending_since[job_id], reader.now_s))
    for unit in tuple(reader.down_since):
        reader.repair(unit)
    indices = {node.name: index for index, node in enumerate(cluster.nodes)}
    of_nodes = [one for one in reader.outages if one[0][1] is None]
    of_devices = [one for one in reader.outages if one[0][1] is not None]
    if of_devices:
        numbers = {cluster.name_of(device): device for device in range(cluster.devices)}
    return Timeline(
        cluster,
        tuple(reader.number),
        _intervals(reader.periods, reader.allocated),
        _spans(sorted(reader.pending)),
        _spans([(indices[node], start_s, end_s) for (node, _), start_s, end_s in of_nodes]),
        _spans([(numbers[one or ""], start_s, end_s) for (_, one), start_s, end_s in of_devices]),
        reader.now_s,
    )


class _LogReader:
    """Reader that collects the periods of jobs and nodes from a log, entry by entry.

    Attributes
    ----------
    number : dict of str to int
        Indices of jobs, in the order of submission.
    running : dict
        Start of the period, allocations and whether it is paused, by job with devices.
    periods : list of tuple
        Job, start, end, index in ``ENDS`` and whether it was paused.
    allocated : list of tuple of Allocation
        Allocations of each period.
    """

    def __init__(self) -> None:
        self.now_s = 0.0
        self.number: dict[str, int] = {}
        self.running: dict[str, tuple[float, tuple[Allocation, ...], bool]] = {}
        self.pending_since: dict[str, float] = {}
        self.down_since: dict[Unit, float] = {}
        self.periods: list[tuple[int, float, float, int, bool]] = []
        self.allocated: list[tuple[Allocation, ...]] = []
        self.pending: list[tuple[int, float, float]] = []
        self.outages: list[tuple[Unit, float, float]] = []

    def read(self, event: str, job_id: str, details: Any) -> None:
        """Read one entry."""
        if event in {"submit", "start", "reject"}:
            self.read_pending(event, job_id, details)
        elif event == "fail":
            self.down_since.setdefault((details["node"], details.get("device")), self.now_s)
        elif event == "repair":
            self.repair((details["node"], details.get("device")))
        else:
            self.read_running(event, job_id, details)

    def read_pending(self, event: str, job_id: str, details: Any) -> None:
        """Read an entry that starts or ends the pending time of a job."""
        if event == "submit":
            self.number[job_id] = len(self.number)
            self.pending_since[job_id] = self.now_s
            return
        self.end_pending(job_id)
        if event == "start":
            self.running[job_id] = (self.now_s, details, False)

    def read_running(self, event: str, job_id: str, details: Any) -> None:
        """Read an entry of a job with devices; entries of other kinds have no effect."""
        if event == "finish":
            self.release(job_id, event)
        elif event in {"preempt", "overflow", "lost"}:
            if job_id in self.running:  # else only a reservation ends, and the job stays pending
                self.release(job_id, event)
                self.pending_since[job_id] = self.now_s
        elif event in {"resize", "migrate", "shrink"}:
            self.release(job_id, event)
            self.running[job_id] = (self.now_s, details, False)
        elif event in {"pause", "resume"}:
            self.running[job_id] = (self.now_s, self.release(job_id, event), event == "pause")

    def release(self, job_id: str, event: str) -> tuple[Allocation, ...]:
        """End the current period of a job and return its allocations."""
        start_s, allocations, paused = self.running.pop(job_id)
        if self.now_s > start_s:
            period = self.number[job_id], start_s, self.now_s, ENDS.index(event), paused
            self.periods.append(period)
            self.allocated.append(allocations)
        return allocations

    def end_pending(self, job_id: str) -> None:
        """End the pending span of a job."""
        start_s = self.pending_since.pop(job_id)
        if self.now_s > start_s:
            self.pending.append((self.number[job_id], start_s, self.now_s))

    def repair(self, unit: Unit) -> None:
        """End the outage of a node or device, if it is down."""
        start_s = self.down_since.pop(unit, None)
        if start_s is not None:
            self.outages.append((unit, start_s, self.now_s))


def _intervals(
    periods: list[tuple[int, float, float, int, bool]], allocated: list[tuple[Allocation, ...]]
) -> Intervals:
    """Return one interval per period and device."""
    members = np.array([len(allocations) for allocations in allocated], dtype=np.int64)
    period = np.repeat(np.arange(len(periods)), members)
    device, compute, _ = _columns(chain.from_iterable(allocated), 3, int(members.sum()))
    job, start_s, end_s, ended_by, paused = _columns(periods, 5, len(periods))
    order = np.lexsort((device, period))
    period = period[order]
    return Intervals(
        job=job[period].astype(np.int32),
        device=device[order].astype(np.int32),
        start_s=start_s[period],
        end_s=end_s[period],
        compute_milli=compute[order].astype(np.int32),
        ended_by=ended_by[period].astype(np.int32),
        paused=paused[period].astype(bool),
    )


def _spans(rows: list[tuple[int, float, float]]) -> Spans:
    index, start_s, end_s = _columns(rows, 3, len(rows))
    return Spans(index.astype(np.int32), start_s, end_s)


def _columns(rows: Iterable[tuple[float, ...]], width: int, count: int) -> Array:
    """Transpose rows of numbers into columns; integers are exact below 2**53."""
    flat = np.fromiter(chain.from_iterable(rows), dtype=np.float64, count=count * width)
    return np.ascontiguousarray(flat.reshape(count, width).T)


def _union(device: Int32s, start_s: Array, end_s: Array) -> tuple[Array, Array]:
    """Return times, and +1 or -1 where a device enters or leaves the union of its spans."""
    # Per device, +1 where a span starts and -1 where one ends; it is in the union above 0.
    devices = np.tile(device, 2)
    at_s = np.concatenate([start_s, end_s])
    change = np.repeat([1, -1], len(device))
    order = np.lexsort((-change, at_s, devices))
    spans = np.cumsum(change[order])  # devices follow each other: each one ends at 0
    before = spans - change[order]
    return at_s[order], (spans > 0).astype(float) - (before > 0)


def _steps(at_s: Array, change: Array) -> Steps:
    """Return the running sum of changes, with one step per moment at which it changes."""
    moments, index = np.unique(at_s, return_inverse=True)
    net = np.bincount(index, weights=change, minlength=len(moments))
    changed = np.abs(net) > 1e-9  # rounding errors of added milli-devices
    return Steps(moments[changed], np.cumsum(net[changed]))
