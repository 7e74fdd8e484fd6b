"""Restriction of gangs to one vertex of the topology, where one can hold them."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np
from numpy.typing import NDArray

from presage.errors import ConfigError
from presage.schedulers.core.capacity.task_slots import (
    are_unconstrained,
    task_slots,
    with_empty_node_limits,
)
from presage.schedulers.core.cluster import Cluster
from presage.schedulers.core.job import Job


def places_near(
    job: Job,
    devices: NDArray[np.int64],
    cluster: Cluster,
    level: str,
    *,
    down: Collection[int] = (),
    failed: Collection[int] = (),
) -> Iterator[NDArray[np.int64]]:
    """Yield the sets of places that a gang may use, one choice after the other.

    If a vertex of the level has enough devices of the allowed kinds for all tasks of the gang, each
    set lies below one vertex with enough devices for the gang to start; otherwise the only set is
    all places.

    Parameters
    ----------
    devices : ndarray of int of shape (candidates,)
        One device of each candidate task.
    down : collection of int
        Nodes that are down; their devices do not count.
    failed : collection of int
        Single devices that are down.

    Raises
    ------
    ConfigError
        If there is no such level.
    """
    topology, size = cluster.topology, job.gpus_per_task
    if level not in topology.costs:
        raise ConfigError(
            f"gang: near={level!r} is not a level; levels are {', '.join(topology.costs)}"
        )
    holds = np.zeros(0, np.int64)  # tasks below each vertex
    if job.gpus > size and level in topology.levels:
        above = topology.ancestor(level)
        usable = np.arange(cluster.devices)
        if job.kinds:
            usable = usable[cluster.columns.has_kind(job.kinds)]
        if down:
            usable = usable[~np.isin(cluster.columns.node[usable], list(down))]
        if failed:
            usable = usable[~np.isin(usable, list(failed))]
        if not are_unconstrained(job):
            cost = np.zeros(len(usable))
            usable = usable[task_slots(with_empty_node_limits(job), cluster, usable, cost)[:, 0]]
        holds = np.bincount(above[usable] + 1)[1:]
    if holds.max(initial=0) * size < job.gpus:
        yield np.arange(len(devices))
        return
    above = above[devices]
    for vertex in np.unique(above[above >= 0]):
        if holds[vertex] * size >= job.fewest_gpus:
            yield np.flatnonzero(above == vertex)
