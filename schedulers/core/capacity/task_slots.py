"""Tasks of a gang: each has its devices on one node, and a node may take only so many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from presage.errors import ImpossibleActionError
from presage.schedulers.core.allocation import Allocation
from presage.schedulers.core.cluster import Cluster
from presage.schedulers.core.job import Job


def are_plain(job: Job) -> bool:
    """Whether each task has one device, and may be on any node."""
    return job.gpus_per_task == 1 and job.node_limits is None


def most_on(job: Job, cluster: Cluster) -> Mapping[int, int] | None:
    """How many tasks each node can take now, by its number; None where any can take all."""
    if job.node_limits is None:
        return None
    now = {name: count for name, count, _ in job.node_limits}
    return {number: now[node.name] for number, node in enumerate(cluster.nodes) if node.name in now}


def if_empty(job: Job) -> Job:
    """The same, of nodes that take as many of its tasks as if they were empty."""
    if job.node_limits is None:
        return job
    return replace(job, node_limits=tuple((name, ever, ever) for name, _, ever in job.node_limits))


def slots(
    job: Job, cluster: Cluster, devices: NDArray[np.int64], cost: NDArray[np.float64]
) -> NDArray[np.int64]:
    """Which devices its tasks can have together: of shape (slots, gpus_per_task), as places.

    On each node the devices are dealt out as they come, first to first; where it cannot take so
    many tasks, the dearest are left.

    Parameters
    ----------
    devices : ndarray of int of shape (candidates,)
        Node by node.
    cost : ndarray of shape (candidates,)
    """
    size = job.gpus_per_task
    if are_plain(job):
        return np.arange(len(devices))[:, None]
    nodes = cluster.columns.node[devices]
    counts = np.bincount(nodes, minlength=len(cluster.nodes))
    tasks = counts // size
    most = most_on(job, cluster)
    if most is not None:
        limits = np.zeros_like(tasks)
        limits[list(most.keys())] = list(most.values())
        tasks = np.minimum(tasks, limits)
    cheapest = np.lexsort((cost, nodes))  # node by node, and there the cheapest first
    rank = np.arange(len(nodes)) - (np.cumsum(counts) - counts)[nodes[cheapest]]
    kept = rank < (tasks * size)[nodes[cheapest]]
    return np.sort(cheapest[kept]).reshape(-1, size)


def check_tasks(job: Job, cluster: Cluster, allocations: Iterable[Allocation]) -> None:
    """Each task is on one node, and none has more than it can take.

    Raises
    ------
    ImpossibleActionError
        Names the node.
    """
    if are_plain(job):
        return
    most = most_on(job, cluster)
    for node, devices in Counter(
        cluster.node_of[allocation.device] for allocation in allocations
    ).items():
        tasks, rest = divmod(devices, job.gpus_per_task)
        name = cluster.nodes[node].name
        if rest:
            raise ImpossibleActionError(
                f"{devices} devices of {name} for tasks of {job.gpus_per_task} each"
            )
        if most is not None and tasks > most.get(node, 0):
            raise ImpossibleActionError(
                f"{tasks} tasks on {name}, which can take {most.get(node, 0)}"
            )
