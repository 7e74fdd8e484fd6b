"""Placement of a gang's tasks: each task is on one node, and a node may limit their number."""

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


def are_unconstrained(job: Job) -> bool:
    """Return whether each task of a job has one device and may be on any node."""
    return job.gpus_per_task == 1 and job.node_limits is None


def task_limits(job: Job, cluster: Cluster) -> Mapping[int, int] | None:
    """Return the largest number of tasks for each node by its number; None without limits."""
    if job.node_limits is None:
        return None
    now = {name: count for name, count, _ in job.node_limits}
    return {number: now[node.name] for number, node in enumerate(cluster.nodes) if node.name in now}


def with_empty_node_limits(job: Job) -> Job:
    """Return the job with the limits that its nodes would have if they were empty."""
    if job.node_limits is None:
        return job
    return replace(job, node_limits=tuple((name, ever, ever) for name, _, ever in job.node_limits))


def task_slots(
    job: Job, cluster: Cluster, devices: NDArray[np.int64], cost: NDArray[np.float64]
) -> NDArray[np.int64]:
    """Return groups of devices, each for one task, as positions in ``devices``.

    The devices of a node are grouped in their order. On a node with a limit, the most expensive
    devices are left out.

    Parameters
    ----------
    devices : ndarray of int of shape (candidates,)
        Candidate devices, node by node.
    cost : ndarray of shape (candidates,)
        Cost of each candidate.

    Returns
    -------
    ndarray of int of shape (slots, gpus_per_task)
    """
    size = job.gpus_per_task
    if are_unconstrained(job):
        return np.arange(len(devices))[:, None]
    nodes = cluster.columns.node[devices]
    counts = np.bincount(nodes, minlength=len(cluster.nodes))
    tasks = counts // size
    most = task_limits(job, cluster)
    if most is not None:
        limits = np.zeros_like(tasks)
        limits[list(most.keys())] = list(most.values())
        tasks = np.minimum(tasks, limits)
    cheapest = np.lexsort((cost, nodes))  # node by node, and there the cheapest first
    rank = np.arange(len(nodes)) - (np.cumsum(counts) - counts)[nodes[cheapest]]
    kept = rank < (tasks * size)[nodes[cheapest]]
    return np.sort(cheapest[kept]).reshape(-1, size)


def check_tasks(job: Job, cluster: Cluster, allocations: Iterable[Allocation]) -> None:
    """Check that each task is on one node and that no node has more tasks than its limit.

    Raises
    ------
    ImpossibleActionError
        If a task is split or a limit is exceeded; the message names the node.
    """
    if are_unconstrained(job):
        return
    most = task_limits(job, cluster)
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
