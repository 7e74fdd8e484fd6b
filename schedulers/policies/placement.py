"""Where a gang goes that is given whole devices."""

from __future__ import annotations

from presage.schedulers.core.allocation import Allocation
from presage.schedulers.core.capacity.idle_devices import IdleDevices
from presage.schedulers.core.capacity.requests import members
from presage.schedulers.core.cluster import Cluster
from presage.schedulers.core.job import Job
from presage.schedulers.core.state import State


def consolidated(job: Job, cluster: Cluster, idle: IdleDevices) -> tuple[Allocation, ...] | None:
    """Whole devices for a gang on as few nodes as can be, taken from ``idle``; None if not now.

    A gang that a node can hold goes to the one with the fewest idle devices that holds it, ties
    to the first. A larger one takes nodes that are wholly idle, the largest first, and its rest
    goes as a smaller one does: so it always fits where all devices that will do are idle.
    """
    rest = members(job, cluster)
    if rest > idle.count:
        return None
    allowed, largest, _ = cluster.nodes_of(job.kinds)
    nodes: list[int] = []
    if rest > largest:
        for size in cluster.node_sizes:
            for node in idle.wholly_idle(size, allowed) if size <= rest else ():
                nodes.append(node)
                rest -= size
                if size > rest:
                    break
    last = None
    if rest:
        for node in nodes:
            allowed &= ~(1 << node)
        last = idle.fullest_with(rest, allowed)
        if last is None:
            return None
    devices = [
        device for node in nodes for device in idle.take_some(node, cluster.nodes[node].devices)
    ]
    if last is not None:
        devices += idle.take_some(last, rest)
    return tuple([cluster.whole[device] for device in devices])


def nearest_nodes(job: Job, state: State, idle: IdleDevices) -> list[int]:
    """The nodes that are nearest to having all devices of a gang idle; none if it can never have.

    Where nobody new is put, idle devices become more: these nodes are the ones again next time.
    """
    allowed, largest, _ = state.cluster.nodes_of(job.kinds)
    for node in state.down:
        allowed &= ~(1 << node)
    rest, kept = members(job, state.cluster), []
    for size in state.cluster.node_sizes if rest > largest else (None,):
        for node in idle.emptiest(allowed):
            devices = state.cluster.nodes[node].devices
            if devices == size or (size is None and devices >= rest):
                kept.append(node)
                rest -= devices
                if rest <= 0:
                    return kept
    return []
