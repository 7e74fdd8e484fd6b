"""Devices of jobs: on one node, or of an elastic job on several."""

from __future__ import annotations

from typing import NamedTuple

from presage.schedulers.live.client.elastic_text import LEAVING
from presage.schedulers.v1 import cluster_pb2 as pb


class Placement(NamedTuple):
    """Allocation of one device to a job.

    Attributes
    ----------
    worker : str
        Worker of an elastic job on the device; "" for another job.
    is_leaving : bool
        Whether only this worker leaves; the device then counts as free.
    """

    node: str
    allocation: pb.Allocation
    worker: str = ""
    is_leaving: bool = False


def placements(row: pb.JobStatus) -> list[Placement]:
    """Return the devices of a job."""
    if not row.members:
        return [Placement(row.node, allocation) for allocation in row.allocations]
    goes_on = row.phase != pb.LEAVING
    return [
        Placement(one.node, one.allocation, one.name, goes_on and one.state == LEAVING)
        for one in row.members
    ]


def nodes_of(row: pb.JobStatus) -> list[str]:
    """Return the nodes of a job, without repetition."""
    return list(dict.fromkeys(member.node for member in row.members)) or [row.node]


def log_source(row: pb.JobStatus) -> str:
    """Return where the log of a job comes from: its node, or a worker of an elastic job."""
    first = next((one for one in placements(row) if not one.is_leaving), None)
    if first is None or not first.worker:
        return row.node
    return f"worker {first.worker} on {first.node}"
