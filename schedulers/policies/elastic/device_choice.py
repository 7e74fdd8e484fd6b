"""Devices of an elastic job: those that it has, then its nodes' others, then few other nodes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from presage.schedulers.core.capacity.idle_devices import IdleDevices
from presage.schedulers.core.cluster import Cluster
from presage.schedulers.policies.elastic.contender import Contender


def choose_devices(
    count: int, own: Sequence[int], idle: IdleDevices, cluster: Cluster, allowed: int
) -> list[int] | None:
    """Return ``count`` devices on few nodes; None if there are too few. Changes nothing.

    Nodes where the job has devices come first, those that can hold most of it before others. The
    rest takes the emptiest nodes while it fills them, and then the node with the fewest idle
    devices that holds it.

    Parameters
    ----------
    own : sequence of int
        Devices that the job has; they need not all be kept.
    allowed : int
        Bit set of the nodes that the job may use.
    """
    by_node: dict[int, list[int]] = {}
    for device in own:
        by_node.setdefault(cluster.node_of[device], []).append(device)
    free = {node: idle.count_on(node) for node in by_node}
    chosen: list[int] = []
    for node in sorted(by_node, key=lambda n: (-len(by_node[n]) - free[n], -len(by_node[n]), n)):
        part = [*by_node[node], *_idle_on(node, free[node], idle, cluster)]
        chosen += part[: count - len(chosen)]
        if len(chosen) == count:
            return chosen
        allowed &= ~(1 << node)
    return _with_other_nodes(chosen, count, idle, cluster, allowed)


def _with_other_nodes(
    chosen: list[int], count: int, idle: IdleDevices, cluster: Cluster, allowed: int
) -> list[int] | None:
    while len(chosen) < count:
        rest = count - len(chosen)
        node = idle.best_fit_node(rest, allowed)
        if node is None:
            node = next(iter(idle.emptiest(allowed)), None)
        if node is None or not (free := idle.count_on(node)):
            return None
        chosen += _idle_on(node, min(rest, free), idle, cluster)
        allowed &= ~(1 << node)
    return chosen


def _idle_on(node: int, count: int, idle: IdleDevices, cluster: Cluster) -> list[int]:
    found = (device for device in cluster.devices_of(node) if idle.is_idle(device))
    return [next(found) for _ in range(count)]


def nodes_of(devices: Iterable[int], cluster: Cluster) -> int:
    """Return the number of nodes of some devices."""
    node_of = cluster.node_of
    return len({node_of[device] for device in devices})


def fastest_devices(
    one: Contender, own: Sequence[int], sizes: range, idle: IdleDevices, cluster: Cluster
) -> list[int] | None:
    """Return the devices on which a job is fastest, of its own ones and idle ones.

    They are of the first kind of which there are enough; None if there are of no kind.

    Parameters
    ----------
    own : sequence of int
        Devices that it keeps if they are on the chosen nodes.
    sizes : range
        Possible numbers of devices, ascending.
    """
    for kinds in one.kinds:
        allowed = cluster.nodes_of(kinds).bits
        devices = _fastest_of(one, own, sizes, idle, cluster, allowed)
        if devices is not None:
            return devices
    return None


def _fastest_of(
    one: Contender,
    own: Sequence[int],
    sizes: range,
    idle: IdleDevices,
    cluster: Cluster,
    allowed: int,
) -> list[int] | None:
    best: tuple[float, int] = (math.inf, 0)
    found: list[int] | None = None
    for gpus in reversed(sizes):
        devices = choose_devices(gpus, own, idle, cluster, allowed)
        if devices is None:
            continue
        cost = one.speed.run_s((gpus, nodes_of(devices, cluster))), gpus
        if found is None or cost < best:
            best, found = cost, devices
    return found
