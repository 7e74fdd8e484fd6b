"""What the page of the cluster shows, of what the controller said."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from presage.schedulers.live.ui.bars import FULL_DEVICE_MILLI
from presage.schedulers.live.ui.figures import (
    ON_NODE,
    STATES,
    clock,
    how_long,
    share,
    size,
    state_of,
)
from presage.schedulers.live.ui.page_rows import (
    Node,
    Row,
    Waiting,
    kinds_of,
    natural,
    node_of,
    row_of,
    waiting_of,
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


class Trouble(NamedTuple):
    """Something that an operator is to look at."""

    name: str
    is_job: bool
    what: str
    said: str


class Totals(NamedTuple):
    """Of the whole cluster; amounts are of devices, or bytes.

    Attributes
    ----------
    used, used_bytes
        Of listed jobs alone, as ``states`` is, save that those which wait are all counted.
    unlisted : int
        Jobs that are not listed.
    """

    nodes: int
    up: int
    devices: int
    given: float
    used: float
    memory_bytes: int
    given_bytes: int
    used_bytes: int
    states: Mapping[str, int]
    unlisted: int


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
    in_order = sorted(found.nodes, key=lambda node: natural(node.name))
    for row in found.jobs:
        if row.phase in ON_NODE:
            on.setdefault(row.node, []).append(row)
    nodes = [node_of(node, on[node.name]) for node in in_order]
    shown = [
        made for node, made in zip(in_order, nodes, strict=True) if wanted.node(node, on[node.name])
    ]
    kinds = kinds_of(found.nodes)
    rows = [row_of(row, kinds.get(name, ())) for name, there in on.items() for row in there]
    queue = _queue(found, wanted)
    asked = sorted(
        (row for row in rows if wanted.job(row.status)),
        key=lambda row: (STATES.index(row.state), -row.status.job.priority, row.status.job.job_id),
    )
    most = len(found.jobs) if wanted.everything else None
    return Overview(
        _totals(found, nodes),
        _trouble(nodes, rows, found.failed),
        _first(shown, MOST_DEVICES if most is None else sum(len(n.devices) for n in shown)),
        len(shown),
        sum(len(node.devices) for node in shown),
        asked[: MOST_ROWS if most is None else most],
        len(asked),
        [
            waiting_of(row, whys.get(row.job.job_id))
            for row in queue[: MOST_QUEUE if most is None else most]
        ],
        len(queue),
    )


def _queue(found: pb.ListResponse, wanted: Wanted) -> list[pb.JobStatus]:
    """In its order; those without a place, which wait for other nodes, behind."""
    rows = [row for row in found.jobs if row.phase not in ON_NODE and wanted.job(row)]
    return sorted(
        rows, key=lambda row: (not row.place_in_queue, row.place_in_queue, row.submitted_unix_s)
    )


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


def _totals(found: pb.ListResponse, nodes: Sequence[Node]) -> Totals:
    devices = [device for node in nodes for device in node.devices]
    states = Counter(state_of(row) for row in found.jobs)
    if states["waiting"]:  # jobs at nodes are listed before them, so the others wait, too
        states["waiting"] += found.left_out
    return Totals(
        len(nodes),
        sum(node.state == "up" for node in nodes),
        len(devices),
        sum(device.given_milli for device in devices) / FULL_DEVICE_MILLI,
        sum(device.used_milli for device in devices) / FULL_DEVICE_MILLI,
        sum(device.memory_bytes for device in devices),
        sum(device.given_bytes for device in devices),
        sum(device.used_bytes for device in devices),
        {name: states[name] for name in (*STATES, "waiting")},
        found.left_out,
    )


def _trouble(
    nodes: Sequence[Node], rows: Sequence[Row], failed: Iterable[pb.JobStatus]
) -> list[Trouble]:
    """Everything that needs attention, the worst first; each job at most once.

    Nodes that are not up, jobs that are late, failed within the hour, or exceed their forecast or
    allocation. Whatever the page draws in red is here (tests/schedulers/live/ui/test_overview.py).
    """
    found = [
        Trouble(node.name, False, node.state, node.said)
        for state in ("away", "drained")
        for node in nodes
        if node.state == state
    ]
    for row in rows:
        if row.status.late:
            said = row.status.why or "beyond what was promised"
            found.append(Trouble(row.status.job.job_id, True, "late", said))
    for one in failed:
        said = f"{one.why}, at {clock(one.ended_unix_s)}".removeprefix(", ")
        found.append(Trouble(one.job.job_id, True, "failed", said))
    return [*found, *(_exceeded(row) for row in rows if not row.status.late and is_over(row))]


def is_over(row: Row) -> bool:
    """Whether a job exceeds its forecast or allocation: then a gauge of it is red."""
    return row.memory.over or row.compute.over or (row.time is not None and row.time.over)


def _exceeded(row: Row) -> Trouble:
    """The worst that a job exceeds."""
    job_id, status = row.status.job.job_id, row.status
    if row.memory.over:
        peak, bound = size(status.peak_memory_bytes), size(row.given_bytes)
        return Trouble(job_id, True, "memory", f"took {peak}, it was given {bound}")
    predicted = row.told or pb.Told()
    if row.time is not None and row.time.over:
        ends, most = how_long(status.elapsed_s + status.remaining_s), how_long(predicted.promised_s)
        return Trouble(job_id, True, "slow", f"takes {ends}, at most {most} were predicted")
    used = share(round(status.usage_milli, -1))
    said = f"keeps {used} busy, {share(predicted.compute_milli)} were predicted"
    return Trouble(job_id, True, "busy", said)
