"""Sizes and places of jobs as text; an elastic job has a worker on each of its devices."""

from __future__ import annotations

from collections import Counter

from presage.schedulers.v1 import cluster_pb2 as pb

LEAVING = "leaving"  # state of a worker that is to end


def size_range(job: pb.Job) -> tuple[int, int]:
    """Return the smallest and largest number of devices of a job."""
    gpus = job.gpus or 1
    return job.min_gpus or gpus, job.max_gpus or gpus


def is_elastic(job: pb.Job) -> bool:
    """Return whether the number of devices of a job may change while it runs."""
    fewest, most = size_range(job)
    return fewest < most


def remaining_members(row: pb.JobStatus) -> list[pb.Member]:
    """Return the workers of an elastic job without those that leave a job that goes on."""
    is_ending = row.phase == pb.LEAVING
    return [member for member in row.members if is_ending or member.state != LEAVING]


def size_text(row: pb.JobStatus) -> str:
    """Return the number of devices of a job: "2", or "3 of 1-4" if it is elastic."""
    fewest, most = size_range(row.job)
    if fewest >= most:
        return str(most)
    size = f"{len(remaining_members(row))} of " if row.members else ""
    return f"{size}{fewest}-{most}"


def nodes_text(row: pb.JobStatus) -> str:
    """Return the node of a job, or those of an elastic job's workers such as "n0 x2, n1"."""
    if not row.members:
        return row.node
    on_node = Counter(member.node for member in remaining_members(row))
    return ", ".join(f"{node} x{n}" if n > 1 else node for node, n in on_node.items())


def usage_per_device(row: pb.JobStatus) -> float:
    """Return the mean usage of each device of a job, in thousandths."""
    # An elastic job reports the sum over its workers, any other job the mean over its devices.
    return row.usage_milli / max(1, len(row.members))
