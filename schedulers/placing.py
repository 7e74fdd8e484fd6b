"""Where a gang goes that is given whole devices."""

from __future__ import annotations

from presage.schedulers.cluster import Cluster
from presage.schedulers.grant import Grant
from presage.schedulers.idle_devices import IdleDevices
from presage.schedulers.job import Job


def consolidated(job: Job, cluster: Cluster, idle: IdleDevices) -> tuple[Grant, ...] | None:
    """Whole devices for a gang on as few nodes as can be, taken from ``idle``; None if not now.

    A gang that a node can hold goes to the one with the fewest idle devices that holds it, ties
    to the first. A larger one takes nodes that are wholly idle, and its rest goes as a smaller
    one does.
    """
    if job.gpus > idle.count:
        return None
    allowed = allowed_nodes(job, cluster)
    size = cluster.largest_node
    wholes, rest = (0, job.gpus) if job.gpus <= size else divmod(job.gpus, size)
    nodes = [node for node, _ in zip(idle.wholly_idle(size, allowed), range(wholes), strict=False)]
    if len(nodes) < wholes:
        return None
    last = None
    if rest:
        for node in nodes:
            allowed &= ~(1 << node)
        last = idle.fullest_with(rest, allowed)
        if last is None:
            return None
    devices = [device for node in nodes for device in idle.take_some(node, size)]
    if last is not None:
        devices += idle.take_some(last, rest)
    return tuple([cluster.whole[device] for device in devices])


def covers(grant: Grant, job: Job, cluster: Cluster) -> bool:
    """Whether a grant is as much as a job's user requests of each device."""
    asked = job.requested(cluster.whole[grant.device])
    return (
        grant.compute_milli >= asked.compute_milli
        and grant.memory_bytes >= asked.memory_bytes
        and (not job.kinds or cluster.kind_of(grant.device) in job.kinds)
    )


def allowed_nodes(job: Job, cluster: Cluster) -> int:
    """Bits of the nodes whose devices will do for a job."""
    if not job.kinds:
        return -1
    return sum(1 << i for i, node in enumerate(cluster.nodes) if node.kind in job.kinds)
