"""Who held what, and who waited, and when: an event log as arrays."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from presage.schedulers.core.allocation import FULL_DEVICE_MILLI, Allocation
from presage.schedulers.core.cluster import Cluster
from presage.schedulers.simulator.event_log import Entry
from presage.system.arrays import Array, Int32s

# What ends an interval; the last one stands for a log that ends before the job does.
ENDS = (
    "finish", "preempt", "resize", "migrate", "pause", "resume", "overflow", "lost", "log",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Intervals:
    """From one change of what a job holds of a device to the next; arrays of shape (intervals,).

    They lie by the time of their end, and devices of a gang side by side, by number.

    Attributes
    ----------
    job : ndarray of int
        Its number in ``Timeline.job_ids``.
    compute_milli : ndarray of int
        Thousandths of the device's compute that were granted; a paused job has none of them.
    ended_by : ndarray of int
        Place in ``ENDS``.
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
    """From when until when something was so of a job (that waits) or of a node (that is down)."""

    of: Int32s
    start_s: Array
    end_s: Array


@dataclass(frozen=True, slots=True)
class Steps:
    """A step function of time: ``value[i]`` from ``at_s[i]`` on, and 0 before the first."""

    at_s: Array
    value: Array

    def integral(self, end_s: Array | float) -> Array:
        """Area from the beginning to each of some times."""
        areas = np.concatenate([[0.0, 0.0], np.cumsum(self.value[:-1] * np.diff(self.at_s))])
        at_s = np.concatenate([[0.0], self.at_s])
        value = np.concatenate([[0.0], self.value])
        place = np.searchsorted(self.at_s, end_s, side="right")  # of the step that it is in
        inside: Array = areas[place] + value[place] * (end_s - at_s[place])
        return inside

    def coarse(self, start_s: float, end_s: float, most: int) -> Steps:
        """At most so many steps: those that there are, or means over equal spans of time."""
        if len(self.at_s) <= most or not end_s > start_s:
            return self
        edges = np.linspace(start_s, end_s, most + 1)
        return Steps(edges[:-1], np.diff(self.integral(edges)) / np.diff(edges))


@dataclass(frozen=True, slots=True)
class Timeline:
    """What an event log tells of a cluster.

    Attributes
    ----------
    job_ids : tuple of str
        By their numbers in ``held`` and ``waits``: as they were submitted.
    held : Intervals
        What jobs held; intervals of no length are left out.
    waits : Spans
        When jobs were pending.
    down : Spans
        When nodes were down.
    end_s : float
        Time of the last entry, or 0.
    """

    cluster: Cluster
    job_ids: tuple[str, ...]
    held: Intervals
    waits: Spans
    down: Spans
    end_s: float

    def busy_devices(self) -> Steps:
        """How many devices anyone was on, paused or not."""
        held = self.held
        # On each device, +1 where a job comes and -1 where one goes; it is busy above 0.
        device = np.tile(held.device, 2)
        at_s = np.concatenate([held.start_s, held.end_s])
        change = np.repeat([1, -1], len(held.device))
        order = np.lexsort((-change, at_s, device))
        there = np.cumsum(change[order])  # of all devices one after the other: each ends at 0
        before = there - change[order]
        turns = (there > 0).astype(float) - (before > 0)
        return _steps(at_s[order], turns)

    def compute_held(self) -> Steps:
        """Devices' worth of compute that jobs held: two halves are one."""
        held = self.held
        share = np.where(held.paused, 0.0, held.compute_milli / FULL_DEVICE_MILLI)
        return _steps(np.concatenate([held.start_s, held.end_s]), np.concatenate([share, -share]))

    def pending_jobs(self) -> Steps:
        """How many jobs waited."""
        waits = self.waits
        ones = np.ones(len(waits.of))
        return _steps(np.concatenate([waits.start_s, waits.end_s]), np.concatenate([ones, -ones]))

    def devices_up(self) -> Steps:
        """How many devices were not down, from 0 s on."""
        sizes = np.array([node.devices for node in self.cluster.nodes], dtype=float)[self.down.of]
        return _steps(
            np.concatenate([[0.0], self.down.start_s, self.down.end_s]),
            np.concatenate([[float(self.cluster.devices)], -sizes, sizes]),
        )


def timeline_of(entries: Iterable[Entry], cluster: Cluster, over: Collection[str]) -> Timeline:
    """Arrays of a log, as of its last entry.

    Parameters
    ----------
    over : collection of str
        Jobs that ended, in whatever way: the log does not say of every job that failed or could
        never run that it waits no longer.
    """
    log = _Log()
    for now_s, what, job_id, more in entries:
        log.now_s = now_s
        log.take(what, job_id, more)
    for job_id in tuple(log.holds):
        log.leave(job_id, "log")
    for job_id in log.waits_since.keys() - over:
        log.waits.append((log.number[job_id], log.waits_since[job_id], log.now_s))
    for node in tuple(log.down_since):
        log.repair(node)
    places = {node.name: place for place, node in enumerate(cluster.nodes)}
    return Timeline(
        cluster,
        tuple(log.number),
        _intervals(log.stays, log.allocated),
        _spans(sorted(log.waits)),
        _spans([(places[name], start_s, end_s) for name, start_s, end_s in log.down]),
        log.now_s,
    )


class _Log:
    """What was read of a log so far.

    Attributes
    ----------
    number : dict of str to int
        Jobs as they were submitted.
    holds : dict
        Of each job that holds devices since when, which, and whether it is paused.
    stays : list of tuple
        Job, start, end, place in ``ENDS`` and whether it was paused; ``allocated`` has what it
        held.
    """

    def __init__(self) -> None:
        self.now_s = 0.0
        self.number: dict[str, int] = {}
        self.holds: dict[str, tuple[float, tuple[Allocation, ...], bool]] = {}
        self.waits_since: dict[str, float] = {}
        self.down_since: dict[str, float] = {}
        self.stays: list[tuple[int, float, float, int, bool]] = []
        self.allocated: list[tuple[Allocation, ...]] = []
        self.waits: list[tuple[int, float, float]] = []
        self.down: list[tuple[str, float, float]] = []

    def take(self, what: str, job_id: str, more: Any) -> None:
        """Apply one entry of the log."""
        if what in {"submit", "start", "reject"}:
            self.take_pending(what, job_id, more)
        elif what == "fail":
            self.down_since.setdefault(more["node"], self.now_s)
        elif what == "repair":
            self.repair(more["node"])
        else:
            self.take_running(what, job_id, more)

    def take_pending(self, what: str, job_id: str, more: Any) -> None:
        """Apply an entry of a job that begins or ends to wait."""
        if what == "submit":
            self.number[job_id] = len(self.number)
            self.waits_since[job_id] = self.now_s
            return
        self.stop_waiting(job_id)
        if what == "start":
            self.holds[job_id] = (self.now_s, more, False)

    def take_running(self, what: str, job_id: str, more: Any) -> None:
        """Apply an entry of a job that holds devices; entries of other kinds have no effect."""
        if what == "finish":
            self.leave(job_id, what)
        elif what in {"preempt", "overflow", "lost"}:
            if job_id in self.holds:  # else it gives up what it had reserved, and still waits
                self.leave(job_id, what)
                self.waits_since[job_id] = self.now_s
        elif what in {"resize", "migrate"}:
            self.leave(job_id, what)
            self.holds[job_id] = (self.now_s, more, False)
        elif what in {"pause", "resume"}:
            self.holds[job_id] = (self.now_s, self.leave(job_id, what), what == "pause")

    def leave(self, job_id: str, what: str) -> tuple[Allocation, ...]:
        """A job no longer holds what it held; that is returned."""
        start_s, allocations, paused = self.holds.pop(job_id)
        if self.now_s > start_s:
            stay = self.number[job_id], start_s, self.now_s, ENDS.index(what), paused
            self.stays.append(stay)
            self.allocated.append(allocations)
        return allocations

    def stop_waiting(self, job_id: str) -> None:
        """A job is pending no longer."""
        start_s = self.waits_since.pop(job_id)
        if self.now_s > start_s:
            self.waits.append((self.number[job_id], start_s, self.now_s))

    def repair(self, node: str) -> None:
        """A node is up; it may have been before."""
        start_s = self.down_since.pop(node, None)
        if start_s is not None:
            self.down.append((node, start_s, self.now_s))


def _intervals(
    stays: list[tuple[int, float, float, int, bool]], allocated: list[tuple[Allocation, ...]]
) -> Intervals:
    """Of each stay one a device."""
    members = np.array([len(allocations) for allocations in allocated], dtype=np.int64)
    stay = np.repeat(np.arange(len(stays)), members)
    device, compute, _ = _columns(chain.from_iterable(allocated), 3, int(members.sum()))
    job, start_s, end_s, ended_by, paused = _columns(stays, 5, len(stays))
    order = np.lexsort((device, stay))
    stay = stay[order]
    return Intervals(
        job=job[stay].astype(np.int32),
        device=device[order].astype(np.int32),
        start_s=start_s[stay],
        end_s=end_s[stay],
        compute_milli=compute[order].astype(np.int32),
        ended_by=ended_by[stay].astype(np.int32),
        paused=paused[stay].astype(bool),
    )


def _spans(rows: list[tuple[int, float, float]]) -> Spans:
    of, start_s, end_s = _columns(rows, 3, len(rows))
    return Spans(of.astype(np.int32), start_s, end_s)


def _columns(rows: Iterable[tuple[float, ...]], width: int, count: int) -> Array:
    """Rows of numbers as columns; whole numbers are exact below 2**53."""
    flat = np.fromiter(chain.from_iterable(rows), dtype=np.float64, count=count * width)
    return np.ascontiguousarray(flat.reshape(count, width).T)


def _steps(at_s: Array, change: Array) -> Steps:
    """Running sum of changes, one step for each moment at which it differs from before."""
    moments, place = np.unique(at_s, return_inverse=True)
    net = np.bincount(place, weights=change, minlength=len(moments))
    moved = np.abs(net) > 1e-9  # thousandths, added up
    return Steps(moments[moved], np.cumsum(net[moved]))
