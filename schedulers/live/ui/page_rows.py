"""Rows of the page: nodes, jobs on nodes, and pending jobs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from presage.schedulers.live.client.slo_text import slo_text
from presage.schedulers.live.ui.bars import (
    DeviceBar,
    Gauge,
    compute_gauge,
    device_bars,
    memory_gauge,
    time_gauge,
)
from presage.schedulers.live.ui.figures import display_state, percent, prediction_for, share, size
from presage.schedulers.v1 import cluster_pb2 as pb


class Node(NamedTuple):
    """Node with the bars of its devices."""

    name: str
    problem: str  # "" if the node is up
    state: str  # up, drained or away
    devices: list[DeviceBar]


class Row(NamedTuple):
    """Job on a node."""

    status: pb.JobStatus
    state: str
    slo: str
    prediction: pb.Prediction | None
    where: str
    share: str
    allocated_bytes: int
    compute: Gauge
    memory: Gauge
    time: Gauge | None


class QueuedJob(NamedTuple):
    """Pending job in the queue."""

    status: pb.JobStatus
    needs: str
    why: str
    nearest: str  # the device that comes closest to its needs, and why it does not fit


def device_kinds(nodes: Iterable[pb.NodeStatus]) -> Mapping[str, list[str]]:
    """Return the kinds of the devices of each node."""
    return {node.name: [device.kind for device in node.devices] for node in nodes}


def natural_key(name: str) -> list[tuple[int, str]]:
    """Sort key that puts "node 9" before "node 10"."""
    return [
        (int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)
    ]


def make_node(node: pb.NodeStatus, jobs: Sequence[pb.JobStatus]) -> Node:
    """Return the row of a node and the jobs on it."""
    state = "up"
    if node.reason:
        state = "drained" if node.connected and node.drained else "away"
    return Node(node.name, node.reason, state, device_bars(node, jobs))


def make_row(row: pb.JobStatus, kinds: Sequence[str]) -> Row:
    """Return the row of a job on a node with devices of these kinds."""
    devices = sorted({allocation.device for allocation in row.allocations})
    kind = kinds[devices[0]] if devices and devices[0] < len(kinds) else ""
    prediction = prediction_for(row, kind)
    shares = sorted({allocation.compute_milli for allocation in row.allocations})
    return Row(
        row,
        display_state(row),
        slo_text(row, kind),
        prediction,
        f"{row.node} : {_ranges(devices)}" if devices else row.node,
        " or ".join(map(percent, shares)),
        sum(allocation.memory_bytes for allocation in row.allocations),
        compute_gauge(row, prediction),
        memory_gauge(row),
        time_gauge(row, prediction),
    )


def _ranges(numbers: Sequence[int]) -> str:
    """Format 0, 1, 2, 5 as "0-2, 5"."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in found)


def make_queued_job(row: pb.JobStatus, explanation: pb.Explanation | None) -> QueuedJob:
    """Return the row of a pending job, with its explanation if it was fetched."""
    job = row.job
    is_gang = job.gpus > 1
    needs = (f"{job.gpus} devices" if is_gang else "1 device") + "".join(
        f", {k}" for k in job.kinds
    )
    if explanation is None:
        return QueuedJob(row, needs, row.reason or "it waits behind the jobs before it", "")
    if not explanation.candidates:
        return QueuedJob(row, needs, _reason(explanation), "")
    best = explanation.candidates[0]
    compute, memory = share(best.required_compute_milli), size(best.required_memory_bytes)
    return QueuedJob(
        row,
        f"{needs}, {compute} and {memory}{' each' if is_gang else ''}",
        _reason(explanation),
        f"closest: {best.node} : {best.device} with {share(best.free_compute_milli)} and "
        f"{size(best.free_memory_bytes)}: {best.verdict}",
    )


def _reason(found: pb.Explanation) -> str:
    """Return the sentence without what the table shows already."""
    place = f"; it is no. {found.status.queue_position} in the queue"
    return found.summary.replace(place, "").removeprefix("it waits").lstrip(": ")
