"""What a vertex of the topology can hold is not spread over several."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from presage.features.errors import ConfigError
from presage.schedulers.cluster import Cluster
from presage.schedulers.job import Job
from presage.schedulers.tasks import are_plain, slots


def kept_near(
    job: Job, devices: NDArray[np.int64], cluster: Cluster, level: str
) -> Iterator[NDArray[np.int64]]:
    """Places among devices that a gang may be spread over, one choice after the other.

    If any vertex of the level has devices for as many tasks as the gang asks for, of kinds and on
    nodes that will do, those below each of them; else all.

    Parameters
    ----------
    devices : ndarray of int of shape (candidates,)
        One of each task that a candidate is of.

    Raises
    ------
    ConfigError
        There is no such level.
    """
    topology, tasks = cluster.topology, job.gpus // job.gpus_per_task
    if level not in topology.costs:
        raise ConfigError(
            f"gang: near={level!r} is no level; known are {', '.join(topology.costs)}"
        )
    holds = 0
    if tasks > 1 and level in topology.levels:
        above = topology.ancestor(level)
        usable = np.arange(cluster.devices)
        if job.kinds:
            usable = usable[cluster.columns.of_kinds(job.kinds)]
        if not are_plain(job):
            usable = usable[slots(job, cluster, usable, np.zeros(len(usable)))[:, 0]]
        holds = int(np.bincount(above[usable] + 1)[1:].max(initial=0))
    if tasks == 1 or holds < tasks:
        yield np.arange(len(devices))
        return
    above = above[devices]
    for vertex in np.unique(above[above >= 0]):
        yield np.flatnonzero(above == vertex)
