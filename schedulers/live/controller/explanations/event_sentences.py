"""Entries of the journal as sentences, for users that watch the cluster's events."""

from __future__ import annotations

from functools import singledispatch

from presage.schedulers.live.controller.journal.journal import Entry
from presage.schedulers.live.controller.journal.records import (
    PRINCIPAL,
    ClockSet,
    ClusterCreated,
    Ended,
    LeaseChanged,
    NodeDrained,
    NodeJoined,
    NodeLost,
    Placed,
    Pruned,
    Record,
    Requeued,
    Started,
    Stopping,
    Submitted,
    of_json,
)
from presage.schedulers.v1 import cluster_pb2 as pb
from presage.system.text.units import quantity


def event_of(entry: Entry, *, is_whole: bool) -> pb.Event:
    """Return an entry as an event; without ``is_whole`` neither its detail nor its caller."""
    record = of_json(entry.record)
    return pb.Event(
        entry=entry.seq,
        time_unix_s=entry.time_unix_s,
        type=type(record).__name__,
        job_id=getattr(record, "job_id", ""),
        node=getattr(record, "node", ""),
        details=detail_of(record) if is_whole else "",
        principal=entry.record.get(PRINCIPAL, "") if is_whole else "",
    )


@singledispatch
def detail_of(record: Record) -> str:
    """Return what a record says beyond its kind, job and node; "" if that is nothing."""
    raise TypeError(f"no sentence for {type(record).__name__}")


@detail_of.register
def _(record: Submitted) -> str:
    return "latency-sensitive" if record.job.get("latency_sensitive") else "best-effort"


@detail_of.register
def _(record: Placed) -> str:
    return "; ".join(filter(None, (_shares(record.allocations), record.reason)))


@detail_of.register
def _(record: Started) -> str:
    return ""


@detail_of.register
def _(record: Stopping) -> str:
    return record.reason


@detail_of.register
def _(record: Requeued) -> str:
    saved = f", {record.saved:.0%} of it saved" if record.saved else ""
    return f"{record.reason}, after {quantity(record.ran_s, 'seconds')}{saved}"


@detail_of.register
def _(record: Ended) -> str:
    ran = f" after {quantity(record.ran_s, 'seconds')}" if record.ran_s else ""
    return f"{record.stage}{ran}{f': {record.reason}' if record.reason else ''}"


@detail_of.register
def _(record: Pruned) -> str:
    jobs, nodes = len(record.job_ids), len(record.nodes)
    return f"{jobs} jobs that have been over for longest, {nodes} nodes long lost"


@detail_of.register
def _(record: ClusterCreated) -> str:
    return f"the cluster {record.cluster_id}"


@detail_of.register
def _(record: LeaseChanged) -> str:
    return f"nodes go by {quantity(record.lease_s, 'seconds')} at most"


@detail_of.register
def _(record: NodeJoined) -> str:
    return f"{len(record.devices)} devices"


@detail_of.register
def _(record: NodeDrained) -> str:
    return "given no jobs" if record.drained else "given jobs again"


@detail_of.register
def _(record: NodeLost) -> str:
    return "silent for longer than its lease"


@detail_of.register
def _(record: ClockSet) -> str:
    return "the machine was started anew, or the cluster is new"


def _shares(allocations: list[list[int]]) -> str:
    """Return allocations such as "30 % of device 0"."""
    return ", ".join(f"{milli / 10:g} % of device {device}" for device, milli, _ in allocations)
