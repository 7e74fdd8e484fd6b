"""Gradient traffic of gangs, by level of the topology."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import NamedTuple

import numpy as np

from presage.schedulers.core.allocation import Allocation
from presage.schedulers.core.job import Job
from presage.schedulers.core.topology import Topology


class GangRun(NamedTuple):
    """Run of a gang on its devices, from a start to their release.

    Attributes
    ----------
    progress : float
        Fraction of the job's iterations done there, including progress that was lost later.
    """

    job: Job
    allocations: tuple[Allocation, ...]
    progress: float


def bytes_by_level(gang_runs: Iterable[GangRun], topology: Topology) -> dict[str, float] | None:
    """Return the gradient bytes sent over each level of a topology; None if all are unknown.

    In an iteration each edge of a ring all-reduce of m members carries 2 (m - 1) / m times their
    gradients (requirement C4), over the level at which its two devices meet. The ring visits the
    devices in depth-first order. The traffic of jobs without gradient bytes or
    iterations is unknown.
    """
    known = [run for run in gang_runs if len(run.allocations) > 1 and _gradient_bytes(run.job)]
    if not known:
        return None
    members = np.array([len(run.allocations) for run in known])
    sent_bytes = np.array([run.progress * _gradient_bytes(run.job) for run in known])
    edge_bytes = np.repeat(sent_bytes * 2 * (members - 1) / members, members)
    ring = np.repeat(np.arange(len(known)), members)
    allocations = chain.from_iterable(run.allocations for run in known)
    devices = np.fromiter((allocation.device for allocation in allocations), np.int64, len(ring))
    rank = topology.depth_first.argsort()
    devices = devices[np.lexsort((rank[devices], ring))]
    following, last = np.roll(devices, -1), members.cumsum() - 1
    following[last] = devices[last - members + 1]
    totals = np.bincount(
        topology.common_level(devices, following), edge_bytes, len(topology.levels)
    )
    return dict(zip(topology.levels, totals.tolist(), strict=True))


def _gradient_bytes(job: Job) -> int:
    """Return the gradient bytes of all iterations of a job; 0 if unknown."""
    return 0 if job.features is None else job.iterations * job.features.memory.gradient_bytes
