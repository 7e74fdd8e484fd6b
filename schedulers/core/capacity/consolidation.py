"""Consolidated placement: exclusive devices for a gang on as few nodes as possible."""

from __future__ import annotations

from presage.schedulers.core.allocation import Allocation
from presage.schedulers.core.capacity.idle_devices import IdleDevices
from presage.schedulers.core.capacity.resource_requests import gang_size
from presage.schedulers.core.cluster import Cluster
from presage.schedulers.core.job import Job


def place_consolidated(
    job: Job, cluster: Cluster, idle: IdleDevices
) -> tuple[Allocation, ...] | None:
    """Return exclusive devices for a gang on as few nodes as possible; None if it does not fit.

    The devices are taken from ``idle``. A gang that fits on one node is placed on the node with the
    fewest idle devices that can hold it; ties go to the first such node. A larger gang takes nodes
    that are entirely idle, the largest first, and its remainder is placed like a smaller gang. A
    gang therefore always fits if all devices of its kinds are idle.
    """
    rest = gang_size(job, cluster)
    if rest > idle.count:
        return None
    allowed, largest, _ = cluster.nodes_of(job.kinds)
    nodes: list[int] = []
    if rest > largest:
        for size in cluster.node_sizes:
            for node in idle.fully_idle_nodes(size, allowed) if size <= rest else ():
                nodes.append(node)
                rest -= size
                if size > rest:
                    break
    last = None
    if rest:
        for node in nodes:
            allowed &= ~(1 << node)
        last = idle.best_fit_node(rest, allowed)
        if last is None:
            return None
    devices = [
        device
        for node in nodes
        for device in idle.take_from_node(node, cluster.nodes[node].devices)
    ]
    if last is not None:
        devices += idle.take_from_node(last, rest)
    return tuple([cluster.full_allocations[device] for device in devices])
