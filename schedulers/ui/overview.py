"""What the page of the cluster shows, of what the controller said."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from presage.schedulers.ui.bars import (
    WHOLE,
    DeviceBar,
    Gauge,
    compute_gauge,
    device_bars,
    kinds_of,
    memory_gauge,
    time_gauge,
)
from presage.schedulers.ui.figures import (
    ON_NODE,
    STATES,
    how_long,
    percent,
    promise_of,
    share,
    size,
    state_of,
    told_here,
)
from presage.schedulers.v1 import cluster_pb2 as pb

# More than this is summarised, unless all of it is asked for.
MOST_DEVICES = 200
MOST_ROWS = 250
MOST_QUEUE = 200
MOST_TROUBLE = 50
WHYS = 20  # from the head of the queue on: each is a question of its own


@dataclass(frozen=True, slots=True)
class Wanted:
    """What of the cluster is to be seen.

    Attributes
    ----------
    words : str
        In the name of a job, its user or model, or of a node.
    state : str
        Of jobs: one of ``STATES``, or "waiting"; "" for any.
    everything : bool
        However much it is.
    """

    words: str = ""
    state: str = ""
    everything: bool = False

    def job(self, row: pb.JobStatus) -> bool:
        """Whether a job is."""
        if self.state and state_of(row) != self.state:
            return False
        job = row.job
        return self._in(job.job_id, job.user, job.model, row.node)

    def node(self, node: pb.NodeStatus, jobs: Sequence[pb.JobStatus]) -> bool:
        """Whether a node is: for its name, its devices' or its jobs'."""
        if self.state:
            return any(self.job(row) for row in jobs)
        kinds = (device.kind for device in node.devices)
        return self._in(node.name, *kinds) or any(self.job(row) for row in jobs)

    def _in(self, *texts: str) -> bool:
        words = self.words.casefold()
        return not words or any(words in text.casefold() for text in texts)


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


class Trouble(NamedTuple):
    """Something that an operator is to look at."""

    name: str
    is_job: bool
    what: str
    said: str


class Totals(NamedTuple):
    """Of the whole cluster; amounts are of devices, or bytes."""

    nodes: int
    up: int
    devices: int
    given: float
    used: float
    memory_bytes: int
    given_bytes: int
    used_bytes: int
    states: Mapping[str, int]


class Overview(NamedTuple):
    """All that the page shows; ``n_`` is how many there are of what may be cut short."""

    totals: Totals
    trouble: list[Trouble]
    nodes: list[Node]
    n_nodes: int
    n_devices: int
    rows: list[Row]
    n_rows: int
    queue: list[Waiting]
    n_queue: int


def head_of_queue(found: pb.ListResponse, wanted: Wanted) -> list[str]:
    """Jobs whose reasons to wait are shown."""
    return [row.job.job_id for row in _queue(found, wanted)[:WHYS]]


def overview_of(
    found: pb.ListResponse, wanted: Wanted, whys: Mapping[str, pb.Explanation]
) -> Overview:
    """What is shown; ``whys`` are explanations of jobs that wait, as far as there are any."""
    on: dict[str, list[pb.JobStatus]] = {node.name: [] for node in found.nodes}
    in_order = sorted(found.nodes, key=lambda node: _natural(node.name))
    for row in found.jobs:
        if row.phase in ON_NODE:
            on.setdefault(row.node, []).append(row)
    nodes = [_node(node, on[node.name]) for node in in_order]
    shown = [
        made for node, made in zip(in_order, nodes, strict=True) if wanted.node(node, on[node.name])
    ]
    kinds = kinds_of(found.nodes)
    rows = [_row(row, kinds.get(name, ())) for name, there in on.items() for row in there]
    queue = _queue(found, wanted)
    asked = sorted(
        (row for row in rows if wanted.job(row.status)),
        key=lambda row: (STATES.index(row.state), -row.status.job.priority, row.status.job.job_id),
    )
    most = len(found.jobs) if wanted.everything else None
    return Overview(
        _totals(found, nodes),
        _trouble(nodes, rows),
        _first(shown, MOST_DEVICES if most is None else sum(len(n.devices) for n in shown)),
        len(shown),
        sum(len(node.devices) for node in shown),
        asked[: MOST_ROWS if most is None else most],
        len(asked),
        [_waiting(row, whys) for row in queue[: MOST_QUEUE if most is None else most]],
        len(queue),
    )


def _queue(found: pb.ListResponse, wanted: Wanted) -> list[pb.JobStatus]:
    """In its order; those without a place, which wait for other nodes, behind."""
    rows = [row for row in found.jobs if row.phase not in ON_NODE and wanted.job(row)]
    return sorted(
        rows, key=lambda row: (not row.place_in_queue, row.place_in_queue, row.submitted_unix_s)
    )


def _natural(name: str) -> list[tuple[int, str]]:
    """Node 9 before node 10."""
    return [
        (int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)
    ]


def _first(nodes: Sequence[Node], most_devices: int) -> list[Node]:
    """Nodes with so many devices in all, those first that something is the matter with."""
    if sum(len(node.devices) for node in nodes) <= most_devices:
        return list(nodes)
    chosen: list[Node] = []
    devices = 0
    for node in sorted(nodes, key=lambda node: node.state == "up"):
        devices += len(node.devices)
        if devices > most_devices and chosen:
            break
        chosen.append(node)
    return chosen


def _node(node: pb.NodeStatus, jobs: Sequence[pb.JobStatus]) -> Node:
    state = "up"
    if node.why:
        state = "drained" if node.connected and node.drained else "away"
    said = f"{node.why}; heard {how_long(node.heard_s)} ago" if state == "away" else node.why
    return Node(node.name, said, state, device_bars(node, jobs))


def row_of(row: pb.JobStatus, nodes: Iterable[pb.NodeStatus]) -> Row:
    """A job that is on one of the nodes."""
    return _row(row, kinds_of(nodes).get(row.node, ()))


def _row(row: pb.JobStatus, there: Sequence[str]) -> Row:
    """A job on a node with devices of such kinds."""
    devices = sorted({grant.device for grant in row.grants})
    kind = there[devices[0]] if devices and devices[0] < len(there) else ""
    told = told_here(row, kind)
    shares = sorted({grant.compute_milli for grant in row.grants})
    return Row(
        row,
        state_of(row),
        promise_of(row),
        told,
        f"{row.node} : {_ranges(devices)}" if devices else row.node,
        " or ".join(map(percent, shares)),
        sum(grant.memory_bytes for grant in row.grants),
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


def _waiting(row: pb.JobStatus, whys: Mapping[str, pb.Explanation]) -> Waiting:
    job = row.job
    many = job.gpus > 1
    needs = (f"{job.gpus} devices" if many else "1 device") + "".join(f", {k}" for k in job.kinds)
    found = whys.get(job.job_id)
    if found is None:
        return Waiting(row, needs, row.why or "it is behind those before it", "")
    best = next((one for one in found.candidates if one.verdict != "not of its kinds"), None)
    if best is None:
        return Waiting(row, needs, _reason(found), "")
    compute, memory = share(best.need_compute_milli), size(best.need_memory_bytes)
    return Waiting(
        row,
        f"{needs}, {compute} and {memory}{' each' if many else ''}",
        _reason(found),
        f"{best.node} : {best.device} has most, {share(best.left_compute_milli)} and "
        f"{size(best.left_memory_bytes)}: {best.verdict}",
    )


def _reason(found: pb.Explanation) -> str:
    """The sentence, without what the table says anyhow."""
    place = f"; it is no. {found.status.place_in_queue} in the queue"
    return found.sentence.replace(place, "").removeprefix("it waits").lstrip(": ")


def _totals(found: pb.ListResponse, nodes: Sequence[Node]) -> Totals:
    devices = [device for node in nodes for device in node.devices]
    states = Counter(state_of(row) for row in found.jobs)
    return Totals(
        len(nodes),
        sum(node.state == "up" for node in nodes),
        len(devices),
        sum(device.given_milli for device in devices) / WHOLE,
        sum(device.used_milli for device in devices) / WHOLE,
        sum(device.memory_bytes for device in devices),
        sum(device.given_bytes for device in devices),
        sum(device.used_bytes for device in devices),
        {name: states[name] for name in (*STATES, "waiting")},
    )


def _trouble(nodes: Sequence[Node], rows: Sequence[Row]) -> list[Trouble]:
    """Nodes that are not up, jobs that are late or beyond what was foretold, the worst first."""
    found = [
        Trouble(node.name, False, node.state, node.said)
        for state in ("away", "drained")
        for node in nodes
        if node.state == state
    ]
    for row in rows:
        job_id, status = row.status.job.job_id, row.status
        if row.state == "late":
            found.append(Trouble(job_id, True, "late", status.why or "beyond what was promised"))
        elif row.memory.over:
            peak, bound = size(status.peak_memory_bytes), size(row.given_bytes)
            found.append(Trouble(job_id, True, "memory", f"took {peak}, it was given {bound}"))
        elif row.compute.over and row.told is not None:
            told = share(row.told.compute_milli)
            used = share(round(status.usage_milli, -1))
            found.append(Trouble(job_id, True, "busy", f"keeps {used} busy, {told} were foretold"))
    return found
