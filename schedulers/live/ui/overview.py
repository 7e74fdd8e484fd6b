"""Content of the overview page, from the controller's listing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from presage.schedulers.live.ui.bars import FULL_DEVICE_MILLI, DeviceBar
from presage.schedulers.live.ui.figures import (
    ON_NODE,
    SLO_VIOLATED,
    STATES,
    clock,
    display_state,
    format_duration,
    share,
    size,
)
from presage.schedulers.live.ui.page_rows import (
    Node,
    QueuedJob,
    Row,
    device_kinds,
    make_node,
    make_queued_job,
    make_row,
    natural_key,
)
from presage.schedulers.live.ui.placements import nodes_of
from presage.schedulers.v1 import cluster_pb2 as pb

# Longer lists are cut, unless all of them are requested.
MAX_DEVICES = 200
MAX_ROWS = 250
MAX_QUEUE = 200
MAX_ISSUES = 50
MAX_EXPLANATIONS = 20  # from the head of the queue: each takes a request


@dataclass(frozen=True, slots=True)
class Query:
    """Filter of the jobs and nodes to show.

    Attributes
    ----------
    words : str
        Text in the name, user or model of a job, or in the name of a node.
    state : str
        State of jobs: one of ``STATES``, or "waiting"; "" for any.
    show_all : bool
        Whether to show lists of any length in full.
    """

    words: str = ""
    state: str = ""
    show_all: bool = False

    def matches_job(self, row: pb.JobStatus) -> bool:
        """Return whether a job matches."""
        if self.state and display_state(row) != self.state:
            return False
        job = row.job
        return self._is_in(job.job_id, job.user, job.model, *nodes_of(row))

    def matches_node(self, node: pb.NodeStatus, jobs: Sequence[pb.JobStatus]) -> bool:
        """Return whether a node matches, by its name, devices or jobs."""
        if self.state:
            return any(self.matches_job(row) for row in jobs)
        kinds = (device.kind for device in node.devices)
        return self._is_in(node.name, *kinds) or any(self.matches_job(row) for row in jobs)

    def _is_in(self, *texts: str) -> bool:
        words = self.words.casefold()
        return not words or any(words in text.casefold() for text in texts)


class Issue(NamedTuple):
    """Problem that needs an operator's attention."""

    name: str
    is_job: bool
    kind: str
    detail: str


class Totals(NamedTuple):
    """Totals of the whole cluster; amounts in devices or bytes.

    Attributes
    ----------
    used, used_bytes
        Of listed jobs only. So is ``states``, except that it counts all pending jobs.
    unlisted : int
        Number of unlisted jobs.
    """

    nodes: int
    up: int
    devices: int
    allocated: float
    used: float
    memory_bytes: int
    allocated_bytes: int
    used_bytes: int
    states: Mapping[str, int]
    unlisted: int


class Overview(NamedTuple):
    """Content of the page; ``n_`` fields are the full lengths of lists that may be cut."""

    totals: Totals
    issues: list[Issue]
    nodes: list[Node]
    n_nodes: int
    n_devices: int
    rows: list[Row]
    n_rows: int
    queue: list[QueuedJob]
    n_queue: int


def head_of_queue(found: pb.ListResponse, query: Query) -> list[str]:
    """Return the jobs at the head of the queue, whose explanations are shown."""
    return [row.job.job_id for row in _queue(found, query)[:MAX_EXPLANATIONS]]


def make_overview(
    found: pb.ListResponse, query: Query, explanations: Mapping[str, pb.Explanation]
) -> Overview:
    """Return the content of the page; pending jobs need not have an explanation."""
    by_node: dict[str, list[pb.JobStatus]] = {node.name: [] for node in found.nodes}
    in_order = sorted(found.nodes, key=lambda node: natural_key(node.name))
    for row in found.jobs:
        for name in nodes_of(row) if row.phase in ON_NODE else ():
            by_node.setdefault(name, []).append(row)
    nodes = [make_node(node, by_node[node.name]) for node in in_order]
    shown = [
        row
        for node, row in zip(in_order, nodes, strict=True)
        if query.matches_node(node, by_node[node.name])
    ]
    kinds = device_kinds(found.nodes)
    # An elastic job is on several nodes.
    on_node = {row.job.job_id: row for jobs in by_node.values() for row in jobs}
    rows = [make_row(row, kinds) for row in on_node.values()]
    queue = _queue(found, query)
    matching = sorted(
        (row for row in rows if query.matches_job(row.status)),
        key=lambda row: (STATES.index(row.state), -row.status.job.priority, row.status.job.job_id),
    )
    limit = len(found.jobs) if query.show_all else None
    return Overview(
        _totals(found, nodes),
        _issues(nodes, rows, found.failed_jobs),
        _first(shown, MAX_DEVICES if limit is None else sum(len(n.devices) for n in shown)),
        len(shown),
        sum(len(node.devices) for node in shown),
        matching[: MAX_ROWS if limit is None else limit],
        len(matching),
        [
            make_queued_job(row, explanations.get(row.job.job_id))
            for row in queue[: MAX_QUEUE if limit is None else limit]
        ],
        len(queue),
    )


def _queue(found: pb.ListResponse, query: Query) -> list[pb.JobStatus]:
    """Return pending jobs in queue order; last those without a place, which wait for nodes."""
    rows = [row for row in found.jobs if row.phase not in ON_NODE and query.matches_job(row)]
    return sorted(
        rows, key=lambda row: (not row.queue_position, row.queue_position, row.submitted_unix_s)
    )


def _first(nodes: Sequence[Node], max_devices: int) -> list[Node]:
    """Return nodes with a number of devices in total, nodes with a problem first."""
    if sum(len(node.devices) for node in nodes) <= max_devices:
        return list(nodes)
    chosen: list[Node] = []
    devices = 0
    for node in sorted(nodes, key=lambda node: node.state == "up" and not _withdrawn(node)):
        devices += len(node.devices)
        if devices > max_devices and chosen:
            break
        chosen.append(node)
    return chosen


def _totals(found: pb.ListResponse, nodes: Sequence[Node]) -> Totals:
    devices = [device for node in nodes for device in node.devices]
    states = Counter(display_state(row) for row in found.jobs)
    if states["waiting"]:  # jobs on nodes are listed first, so all unlisted jobs are pending
        states["waiting"] += found.remaining_job_count
    return Totals(
        len(nodes),
        sum(node.state == "up" for node in nodes),
        len(devices),
        sum(device.allocated_milli for device in devices) / FULL_DEVICE_MILLI,
        sum(device.used_milli for device in devices) / FULL_DEVICE_MILLI,
        sum(device.memory_bytes for device in devices),
        sum(device.allocated_bytes for device in devices),
        sum(device.used_bytes for device in devices),
        {name: states[name] for name in (*STATES, "waiting")},
        found.remaining_job_count,
    )


def _issues(
    nodes: Sequence[Node], rows: Sequence[Row], failed: Iterable[pb.JobStatus]
) -> list[Issue]:
    """Return everything that needs attention, by severity; each job at most once.

    Nodes that are not up and devices that are withdrawn; jobs that violate their SLO, failed within
    the hour, or exceed their forecast or allocation. Everything that the page draws in red is
    included (tests/schedulers/live/ui/test_overview.py).
    """
    found = [
        Issue(node.name, False, node.state, node.problem)
        for state in ("away", "drained")
        for node in nodes
        if node.state == state
    ]
    for node in nodes:
        for device in _withdrawn(node):
            found.append(Issue(f"{node.name}/{device.number}", False, "withdrawn", device.problem))
    for row in rows:
        if row.status.slo_violated:
            detail = row.status.reason or "it takes longer than its SLO allows"
            found.append(Issue(row.status.job.job_id, True, SLO_VIOLATED, detail))
    for job in failed:
        detail = f"{job.reason}, at {clock(job.ended_unix_s)}".removeprefix(", ")
        found.append(Issue(job.job.job_id, True, "failed", detail))
    return [
        *found,
        *(_exceeded(row) for row in rows if not row.status.slo_violated and exceeds_bounds(row)),
    ]


def _withdrawn(node: Node) -> list[DeviceBar]:
    return [device for device in node.devices if device.problem]


def exceeds_bounds(row: Row) -> bool:
    """Return whether a job exceeds its forecast or allocation, so that a gauge is red."""
    return (
        row.memory.exceeded or row.compute.exceeded or (row.time is not None and row.time.exceeded)
    )


def _exceeded(row: Row) -> Issue:
    """Return the most severe excess of a job."""
    job_id, status = row.status.job.job_id, row.status
    if row.memory.exceeded:
        peak, bound = size(status.peak_memory_bytes), size(row.allocated_bytes)
        return Issue(job_id, True, "memory", f"used {peak}, {bound} were allocated")
    predicted = row.prediction or pb.Prediction()
    if row.time is not None and row.time.exceeded:
        ends = format_duration(status.elapsed_s + status.remaining_s)
        bound = format_duration(predicted.slo_s)
        return Issue(job_id, True, "slow", f"takes {ends}, at most {bound} were predicted")
    used = share(round(row.usage_milli, -1))
    detail = f"uses {used} of its device, {share(predicted.compute_milli)} were predicted"
    return Issue(job_id, True, "busy", detail)
