"""Nodes to drain for a gang that waits for exclusive devices."""

from __future__ import annotations

from collections import Counter

from presage.schedulers.core.capacity.idle_devices import IdleDevices
from presage.schedulers.core.capacity.resource_requests import gang_size
from presage.schedulers.core.job import Job
from presage.schedulers.core.state import State


def nearest_nodes(job: Job, state: State, idle: IdleDevices) -> list[int]:
    """Return the nodes that are closest to having all devices of a gang idle.

    The list is empty if no set of nodes that are up can ever hold the gang. A policy that starts no
    other jobs on these nodes finds the same nodes at its next decision, with more idle devices.
    """
    allowed, largest, _ = state.cluster.nodes_of(job.kinds)
    for node in state.down:
        allowed &= ~(1 << node)
    rest, nodes = gang_size(job, state.cluster), list[int]()
    failed = Counter(state.cluster.node_of[device] for device in state.failed_devices)
    for size in state.cluster.node_sizes if rest > largest else (None,):
        for node in idle.emptiest(allowed):
            devices = state.cluster.nodes[node].devices - failed[node]
            if devices > 0 and (devices == size or (size is None and devices >= rest)):
                nodes.append(node)
                rest -= devices
                if rest <= 0:
                    return nodes
    return []
