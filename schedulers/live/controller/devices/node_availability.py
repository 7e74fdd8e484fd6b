"""Availability of a node: its state, and why it gets no jobs."""

from __future__ import annotations

from typing import NamedTuple

from presage.schedulers.v1 import cluster_pb2 as pb
from presage.system.text.units import quantity

MAX_REASON_LENGTH = 256  # characters of an operator's reason


class Availability(NamedTuple):
    """State of a node.

    Attributes
    ----------
    state : str
        ``ready``, ``drained``, ``silent``, ``lost``, ``starting`` (its agent has not reported to
        this controller yet) or ``unavailable`` (its agent cannot start jobs).
    reason : str
        Why it gets no jobs; "" if it does.
    """

    state: str
    reason: str = ""


READY = Availability("ready")
STARTING = Availability("starting", "its agent has not reported yet")


def lost(ago_s: float) -> Availability:
    """Return the state of a node that was lost some time ago."""
    return Availability("lost", f"it was lost {quantity(ago_s, 'seconds')} ago")


def silent(for_s: float) -> Availability:
    """Return the state of a node whose agent has not reported for some time."""
    return Availability("silent", f"its agent has been silent for {for_s:.0f} s")


def drained(by: str, reason: str) -> Availability:
    """Return the state of a node that an operator drained."""
    return Availability("drained", drained_text(by, reason))


def of_report(report: pb.NodeReport, cluster_id: str) -> Availability:
    """Return the state of a connected node in a cluster: whether its agent can start jobs."""
    if report.cluster_id and report.cluster_id != cluster_id:
        why = f"its agent has tasks of another cluster, {report.cluster_id}, that have not ended"
        return Availability("unavailable", why)
    if report.problem:
        return Availability("unavailable", f"its agent can start no job: {report.problem}")
    return READY


def drained_text(by: str, reason: str) -> str:
    """Return by which user and why a node or device is drained: "it is drained by ops: fan"."""
    return f"it is drained{f' by {by}' if by else ''}{f': {reason}' if reason else ''}"
