"""Rows of the page: nodes, jobs on nodes, and pending jobs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from presage.schedulers.live.client.elastic_text import (
    is_elastic,
    nodes_text,
    size_range,
    size_text,
    usage_per_device,
)
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
from presage.schedulers.live.ui.placements import Placement, placements
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
    size: str  # number of devices of an elastic job; "" for another job
    usage_milli: float  # of each device
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


def make_row(row: pb.JobStatus, kinds: Mapping[str, Sequence[str]]) -> Row:
    """Return the row of a job on nodes, whose devices are of these kinds."""
    found = placements(row)
    allocations = [one.allocation for one in found]
    devices = sorted({allocation.device for allocation in allocations})
    kind = _first_kind(found, kinds)
    prediction = prediction_for(row, kind)
    shares = sorted({allocation.compute_milli for allocation in allocations})
    return Row(
        row,
        display_state(row),
        slo_text(row, kind),
        prediction,
        f"{row.node} : {_ranges(devices)}" if row.allocations else nodes_text(row),
        size_text(row) if is_elastic(row.job) else "",
        usage_per_device(row),
        " or ".join(map(percent, shares)),
        sum(allocation.memory_bytes for allocation in allocations),
        compute_gauge(row, prediction),
        memory_gauge(row),
        time_gauge(row, prediction),
    )


def _first_kind(found: Sequence[Placement], kinds: Mapping[str, Sequence[str]]) -> str:
    """Return the kind of a job's first device; "" if it is unknown."""
    if not found:
        return ""
    on_node = kinds.get(found[0].node, ())
    first = min(one.allocation.device for one in found if one.node == found[0].node)
    return on_node[first] if first < len(on_node) else ""


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
    is_gang = size_range(job)[1] > 1
    needs = (f"{size_text(row)} devices" if is_gang else "1 device") + "".join(
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
