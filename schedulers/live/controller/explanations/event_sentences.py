"""Conversion of journal entries to events with human-readable details."""

from __future__ import annotations

from collections import Counter
from functools import singledispatch
from typing import Any

from presage.schedulers.live.controller.journal.journal import Entry
from presage.schedulers.live.controller.journal.records import (
    PRINCIPAL,
    ClockSet,
    ClusterCreated,
    DeviceDrained,
    Ended,
    HalfLifeChanged,
    HealthReported,
    Held,
    LeaseChanged,
    MemberEnded,
    NodeDrained,
    NodeJoined,
    NodeLost,
    Placed,
    PriorityChanged,
    Pruned,
    QuotaChanged,
    Record,
    Requeued,
    Resized,
    Started,
    Stopping,
    Submitted,
    record_from_json,
)
from presage.schedulers.v1 import cluster_pb2 as pb
from presage.system.text.units import counted, quantity

MAX_NAMED = 8  # signals of a record


def make_event(entry: Entry, *, has_details: bool) -> pb.Event:
    """Return an entry as an event; details and principal only with ``has_details``."""
    record = record_from_json(entry.record)
    return pb.Event(
        entry=entry.seq,
        time_unix_s=entry.time_unix_s,
        type=type(record).__name__,
        job_id=getattr(record, "job_id", ""),
        node=getattr(record, "node", ""),
        details=event_details(record) if has_details else "",
        principal=entry.record.get(PRINCIPAL, "") if has_details else "",
    )


@singledispatch
def event_details(record: Record) -> str:
    """Return the details of a record besides its type, job and node; "" for none."""
    raise TypeError(f"no details for records of type {type(record).__name__}")


@event_details.register
def _(record: Submitted) -> str:
    return "latency-sensitive" if record.job.get("latency_sensitive") else "best-effort"


@event_details.register
def _(record: Held) -> str:
    return "does not start until it is released" if record.held else "released"


@event_details.register
def _(record: PriorityChanged) -> str:
    return f"to {record.priority}"


@event_details.register
def _(record: QuotaChanged) -> str:
    subject = f"of user {record.user!r}" if record.user else "of users without one"
    limits = [
        f"{record.devices:g} devices" if record.devices is not None else "",
        f"weight {record.weight:g}" if record.weight is not None else "",
    ]
    return f"{subject}: {', '.join(filter(None, limits)) or 'removed'}"


@event_details.register
def _(record: HalfLifeChanged) -> str:
    return f"past use counts half after {quantity(record.half_life_s, 'seconds')}"


@event_details.register
def _(record: Placed) -> str:
    where = _shares(record.allocations) or _members(record.members)
    return "; ".join(filter(None, (where, record.reason)))


@event_details.register
def _(record: Resized) -> str:
    return "; ".join(filter(None, (_members(record.members), record.reason)))


@event_details.register
def _(record: MemberEnded) -> str:
    return record.reason


@event_details.register
def _(record: Started) -> str:
    return ""


@event_details.register
def _(record: Stopping) -> str:
    return record.reason


@event_details.register
def _(record: Requeued) -> str:
    saved = f", {record.saved:.0%} of it saved" if record.saved else ""
    return f"{record.reason}, after {quantity(record.ran_s, 'seconds')}{saved}"


@event_details.register
def _(record: Ended) -> str:
    ran = f" after {quantity(record.ran_s, 'seconds')}" if record.ran_s else ""
    return f"{record.stage}{ran}{f': {record.reason}' if record.reason else ''}"


@event_details.register
def _(record: Pruned) -> str:
    jobs, nodes = counted(len(record.job_ids), "ended job"), counted(len(record.nodes), "lost node")
    return f"{jobs}, {nodes}"


@event_details.register
def _(record: ClusterCreated) -> str:
    return f"cluster {record.cluster_id}"


@event_details.register
def _(record: LeaseChanged) -> str:
    return f"leases of up to {quantity(record.lease_s, 'seconds')}"


@event_details.register
def _(record: NodeJoined) -> str:
    return counted(len(record.devices), "device")


@event_details.register
def _(record: NodeDrained) -> str:
    return _drain(record) if record.drained else "gets jobs again"


@event_details.register
def _(record: HealthReported) -> str:
    named = [
        f"device {device} {severity}: {reason}" for device, _, severity, reason in record.signals
    ]
    more = len(named) - MAX_NAMED
    return "; ".join([*named[:MAX_NAMED], *([f"{more} more"] if more > 0 else [])])


@event_details.register
def _(record: DeviceDrained) -> str:
    return f"device {record.device} {_drain(record) if record.drained else 'gets jobs again'}"


@event_details.register
def _(record: NodeLost) -> str:
    return "no report within its lease"


@event_details.register
def _(record: ClockSet) -> str:
    return "the machine was restarted, or the cluster is new"


def _drain(record: NodeDrained | DeviceDrained) -> str:
    return f"gets no jobs{f': {record.reason}' if record.reason else ''}"


def _shares(allocations: list[list[int]]) -> str:
    """Return allocations such as "30 % of device 0"."""
    return ", ".join(f"{milli / 10:g} % of device {device}" for device, milli, _ in allocations)


def _members(members: list[list[Any]]) -> str:
    """Return the devices of workers such as "2 on n0, 1 on n1"."""
    on_node = Counter(member[1] for member in members)
    return ", ".join(f"{count} on {node}" for node, count in on_node.items())
