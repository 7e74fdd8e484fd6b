"""Nodes, jobs on them and jobs in the queue, as the page shows each."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from presage.schedulers.live.client.slo_text import promise_of
from presage.schedulers.live.ui.bars import (
    DeviceBar,
    Gauge,
    compute_gauge,
    device_bars,
    memory_gauge,
    time_gauge,
)
from presage.schedulers.live.ui.figures import percent, share, size, state_of, told_here
from presage.schedulers.v1 import cluster_pb2 as pb


class Node(NamedTuple):
    """A node and its devices."""

    name: str
    said: str  # what is the matter with it; "" if nothing is
    state: str  # up, drained or away
    devices: list[DeviceBar]


class Row(NamedTuple):
    """A job that is on a node."""

    status: pb.JobStatus
    state: str
    promise: str
    told: pb.Told | None
    where: str
    share: str
    given_bytes: int
    compute: Gauge
    memory: Gauge
    time: Gauge | None


class Waiting(NamedTuple):
    """A job in the queue."""

    status: pb.JobStatus
    needs: str
    why: str
    nearest: str  # the device that is nearest to do, and why it does not


def kinds_of(nodes: Iterable[pb.NodeStatus]) -> Mapping[str, list[str]]:
    """Kinds of the devices of each node."""
    return {node.name: [device.kind for device in node.devices] for node in nodes}


def natural(name: str) -> list[tuple[int, str]]:
    """Node 9 before node 10."""
    return [
        (int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)
    ]


def node_of(node: pb.NodeStatus, jobs: Sequence[pb.JobStatus]) -> Node:
    """A node with the jobs on it."""
    state = "up"
    if node.why:
        state = "drained" if node.connected and node.drained else "away"
    return Node(node.name, node.why, state, device_bars(node, jobs))


def row_of(row: pb.JobStatus, there: Sequence[str]) -> Row:
    """A job on a node with devices of such kinds."""
    devices = sorted({allocation.device for allocation in row.allocations})
    kind = there[devices[0]] if devices and devices[0] < len(there) else ""
    told = told_here(row, kind)
    shares = sorted({allocation.compute_milli for allocation in row.allocations})
    return Row(
        row,
        state_of(row),
        promise_of(row, kind),
        told,
        f"{row.node} : {_ranges(devices)}" if devices else row.node,
        " or ".join(map(percent, shares)),
        sum(allocation.memory_bytes for allocation in row.allocations),
        compute_gauge(row, told),
        memory_gauge(row),
        time_gauge(row, told),
    )


def _ranges(numbers: Sequence[int]) -> str:
    """0, 1, 2, 5 as "0-2, 5"."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in found)


def waiting_of(row: pb.JobStatus, found: pb.Explanation | None) -> Waiting:
    """A job in the queue; ``found`` says why, as far as that was asked."""
    job = row.job
    many = job.gpus > 1
    needs = (f"{job.gpus} devices" if many else "1 device") + "".join(f", {k}" for k in job.kinds)
    if found is None:
        return Waiting(row, needs, row.why or "it is behind those before it", "")
    if not found.candidates:
        return Waiting(row, needs, _reason(found), "")
    best = found.candidates[0]
    compute, memory = share(best.need_compute_milli), size(best.need_memory_bytes)
    return Waiting(
        row,
        f"{needs}, {compute} and {memory}{' each' if many else ''}",
        _reason(found),
        f"nearest is {best.node} : {best.device} with {share(best.left_compute_milli)} and "
        f"{size(best.left_memory_bytes)}: {best.verdict}",
    )


def _reason(found: pb.Explanation) -> str:
    """The sentence, without what the table says anyhow."""
    place = f"; it is no. {found.status.place_in_queue} in the queue"
    return found.sentence.replace(place, "").removeprefix("it waits").lstrip(": ")
