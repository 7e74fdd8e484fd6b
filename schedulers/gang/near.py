"""What a vertex of the topology can hold is not spread over several."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from presage.features.errors import ConfigError
from presage.schedulers.cluster import Cluster
from presage.schedulers.job import Job


def kept_near(
    job: Job, devices: NDArray[np.int64], cluster: Cluster, level: str
) -> Iterator[NDArray[np.int64]]:
    """Places among devices that a gang may be spread over, one choice after the other.

    If any vertex of the level has as many devices as the gang asks for, of kinds that will do,
    those below each vertex that has enough for it to start; else all.

    Raises
    ------
    ConfigError
        There is no such level.
    """
    topology = cluster.topology
    if level not in topology.costs:
        raise ConfigError(
            f"gang: near={level!r} is no level; known are {', '.join(topology.costs)}"
        )
    holds = np.zeros(0, np.int64)  # devices below each vertex
    if job.gpus > 1 and level in topology.levels:
        above = topology.ancestor(level)
        usable = above[cluster.columns.of_kinds(job.kinds)] if job.kinds else above
        holds = np.bincount(usable + 1)[1:]
    if holds.max(initial=0) < job.gpus:
        yield np.arange(len(devices))
        return
    above = above[devices]
    for vertex in np.unique(above[above >= 0]):
        if holds[vertex] >= job.fewest_gpus:
            yield np.flatnonzero(above == vertex)
