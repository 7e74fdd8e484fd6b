"""Entries of the journal as sentences, for whoever watches."""

from __future__ import annotations

from presage.schedulers.live.controller.journal.journal import Entry
from presage.schedulers.live.controller.journal.records import (
    BY,
    ClockSet,
    Forgotten,
    Founded,
    JobResult,
    Leased,
    NodeDrained,
    NodeJoined,
    NodeLost,
    Placed,
    Record,
    Returned,
    Started,
    Submitted,
    Withdrawn,
    of_json,
)
from presage.schedulers.v1 import cluster_pb2 as pb
from presage.system.units import quantity


def event_of(entry: Entry, *, is_whole: bool) -> pb.Event:
    """Return an entry as an event; without ``is_whole`` neither its detail nor its caller."""
    record = of_json(entry.record)
    return pb.Event(
        entry=entry.seq,
        at_unix_s=entry.at_unix_s,
        what=type(record).__name__,
        job_id=getattr(record, "job_id", ""),
        node=getattr(record, "node", ""),
        detail=detail_of(record) if is_whole else "",
        by=entry.record.get(BY, "") if is_whole else "",
    )


def detail_of(record: Record) -> str:  # noqa: PLR0911, PLR0912 - one for each kind of record
    """What there is to say beside what, whose and where."""
    match record:
        case Submitted():
            return "latency-sensitive" if record.job.get("latency_sensitive") else "best-effort"
        case Placed():
            return "; ".join(filter(None, (_shares(record.allocations), record.why)))
        case Started():
            return ""
        case Withdrawn():
            return record.why
        case Returned():
            saved = f", {record.saved:.0%} of it saved" if record.saved else ""
            return f"{record.why}, after {quantity(record.ran_s, 'seconds')}{saved}"
        case JobResult():
            ran = f" after {quantity(record.ran_s, 'seconds')}" if record.ran_s else ""
            return f"{record.stage}{ran}{f': {record.why}' if record.why else ''}"
        case Forgotten():
            jobs, nodes = len(record.job_ids), len(record.nodes)
            return f"{jobs} jobs that have been over for longest, {nodes} nodes long lost"
        case Founded():
            return f"the cluster {record.cluster_id}"
        case Leased():
            return f"nodes go by {quantity(record.lease_s, 'seconds')} at most"
        case NodeJoined():
            return f"{len(record.devices)} devices"
        case NodeDrained():
            return "given no jobs" if record.drained else "given jobs again"
        case NodeLost():
            return "silent for longer than its lease"
        case ClockSet():
            return "the machine was started anew, or the cluster is new"


def _shares(allocations: list[list[int]]) -> str:
    """Such as "30 % of device 0"."""
    return ", ".join(f"{milli / 10:g} % of device {device}" for device, milli, _ in allocations)
